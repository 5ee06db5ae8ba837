# Images of docker-compose.yml, one target each: tidegate, redis, prometheus, grafana, collector. Bases are pinned by
# digest; docs/operate/install.md says how they are updated. Nothing secret is in an image: tokens are made at the first
# start, in the volume of the state.

FROM python:3.13.15-slim-bookworm@sha256:ed86c82274b3c69b52fb5820f358f0bd7df0b603332063cb5c6e32bd220c3e6e AS python

FROM python AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN ["python", "-m", "venv", "/opt/tidegate"]
COPY deploy/compose/requirements.lock deploy/compose/
RUN ["/opt/tidegate/bin/python", "-m", "pip", "install", "--only-binary", ":all:", "--require-hashes", "-r", "deploy/compose/requirements.lock"]
COPY . .
RUN ["/opt/tidegate/bin/python", "-m", "pip", "install", "--no-deps", "."]
RUN ["/opt/tidegate/bin/python", "-m", "pip", "uninstall", "--yes", "pip"]

FROM python AS tidegate
RUN ["install", "-d", "-o", "10001", "-g", "10001", "-m", "0700", "/var/lib/tidegate"]
COPY --from=build /opt/tidegate /opt/tidegate
COPY deploy/compose/tidegate.toml /etc/tidegate/tidegate.toml
COPY examples/hello /opt/tidegate/examples/hello
ENV PATH=/opt/tidegate/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp TIDEGATE_STATE=/var/lib/tidegate PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
ENTRYPOINT ["tidegate"]
CMD ["up", "--config", "/etc/tidegate/tidegate.toml"]

FROM redis:7.4.5-alpine@sha256:bb186d083732f669da90be8b0f975a37812b15e913465bb14d845db72a4e3e08 AS redis
COPY deploy/compose/redis.conf /etc/tidegate/redis.conf
USER redis
EXPOSE 6379
ENTRYPOINT ["redis-server"]
CMD ["/etc/tidegate/redis.conf"]

# It runs as the user of the deployment, so that it can read the token in the volume of the state.
FROM prom/prometheus:v3.5.0@sha256:63805ebb8d2b3920190daf1cb14a60871b16fd38bed42b857a3182bc621f4996 AS prometheus
COPY deploy/prometheus /etc/tidegate
USER root
RUN ["mkdir", "/var/lib/prometheus"]
RUN ["chown", "10001:10001", "/var/lib/prometheus"]
USER 10001:10001
EXPOSE 9090
ENTRYPOINT ["prometheus"]
CMD ["--config.file=/etc/tidegate/prometheus.yml", "--storage.tsdb.path=/var/lib/prometheus", "--storage.tsdb.retention.time=15d", "--web.listen-address=0.0.0.0:9090"]

FROM grafana/grafana:12.1.1@sha256:a1701c2180249361737a99a01bc770db39381640e4d631825d38ff4535efa47d AS grafana
COPY deploy/grafana/*.json /etc/tidegate/boards/
COPY deploy/grafana/provisioning/dashboards.yml /etc/grafana/provisioning/dashboards/tidegate.yml
COPY deploy/grafana/provisioning/datasources.yml /etc/grafana/provisioning/datasources/tidegate.yml
USER root
RUN ["sed", "-i", "s#/var/lib/grafana/dashboards/tidegate#/etc/tidegate/boards#", "/etc/grafana/provisioning/dashboards/tidegate.yml"]
RUN ["sed", "-i", "s#http://127.0.0.1:9090#http://prometheus:9090#", "/etc/grafana/provisioning/datasources/tidegate.yml"]
USER 472
EXPOSE 3000

FROM otel/opentelemetry-collector:0.159.0@sha256:7725a7a10c87d8853208bdd4bb3439ad3c0d7b32b4292b9300ac07c8daba14a2 AS collector
COPY deploy/compose/collector.yaml /etc/tidegate/collector.yaml
USER 10001:10001
EXPOSE 4317 4318
CMD ["--config=/etc/tidegate/collector.yaml"]
