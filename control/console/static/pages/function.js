// One function: live charts, groups, decisions with reasons, cold starts, revisions and rollouts, logs.

import { Chart, History } from "../charts.js";
import { h, refill, setText, Table, badge } from "../dom.js";
import { clock, number, percent, rate, seconds, slaCell, stateCell, target } from "../format.js";
import { Logs } from "../logs.js";
import { Rollouts } from "../rollouts.js";

const RANGES = [[300, "5 minutes"], [3600, "1 hour"], [14400, "4 hours"]];
const FINE_S = 300;
const COARSE_STEP_S = 30;
const COLOURS = ["--line1", "--line2", "--line3", "--line4", "--line5"];
const PHASES = [["decide_s", "decide"], ["schedule_s", "spawn"], ["pull_s", "pull"], ["load_s", "load"], ["warm_s", "warm"], ["first_response_s", "first answer"]];

export class FunctionPage {
  constructor(name) {
    this.name = name;
    this.title = name;
    this.span = RANGES[0][0];
    this.history = new History();
    this.state = h("span");
    this.sla = h("span");
    this.facts = h("dl", { class: "facts" });
    this.summary = h("div", { class: "why" });
    this.charts = {
      rate: new Chart("Arrivals", "per second", rate),
      latency: new Chart("Latency of the last minute against its target", "", seconds),
      replicas: new Chart("Replicas", "", (value) => number(value)),
      waiting: new Chart("Waiting requests", "", (value) => number(value)),
      batch: new Chart("Batch sizes", "", (value) => number(value, 3)),
      weights: new Chart("Weights of groups", "", (value) => percent(value, 0)),
      lambda: new Chart("Rates of groups (lambda)", "", (value) => `${number(value, 3)}/s`),
      mu: new Chart("Service rates of a replica (mu)", "", (value) => `${number(value, 3)}/s`),
      busy: new Chart("Busy replicas of groups", "", (value) => number(value, 3)),
    };
    this.sizes = new Table("Inferences per request, last minute", [
      { title: "At most", cell: (row) => number(row[0]) },
      { title: "Requests", number: true, cell: (row) => row[1] },
    ], "No request in the last minute.");
    this.groups = new Table("Groups", [
      { title: "Group", cell: (row) => ({ text: row.accelerator + (row.emulated ? " (emulated)" : ""), note: row.revision }) },
      { title: "Ready / wanted", number: true, cell: (row) => `${row.ready} / ${row.wanted ?? "hold"}${row.starting ? ` +${row.starting} starting` : ""}` },
      { title: "Weight", number: true, cell: (row) => percent(row.weight, 0) },
      { title: "mu per replica", number: true, cell: (row) => mu(row) },
      { title: "lambda", number: true, cell: (row) => `${rate(row.ips)}/s` },
      { title: "Busy", number: true, cell: (row) => percent(row.busy, 0) },
      { title: "Execution", number: true, wide: true, cell: (row) => seconds(row.execution_s) },
      { title: "Tail", number: true, wide: true, cell: (row) => seconds(row.tail_s) },
      { title: "Batch", number: true, wide: true, cell: (row) => number(row.mean_batch, 3) },
      { title: "Slots", number: true, wide: true, cell: (row) => row.limit === null ? "?" : row.limit === 0 ? "no limit" : row.limit },
      { title: "Price/h", number: true, wide: true, cell: (row) => number(row.price_per_hour) },
    ], "No group yet.");
    this.idle = new Table("Idle replicas", [
      { title: "Group", cell: (row) => ({ text: row.accelerator, note: row.revision }) },
      { title: "Now", cell: (row) => row.now },
      { title: "Measured", cell: (row) => row.states ?? "no start was measured yet" },
    ], "No replica yet.");
    this.decisions = new Table("Decisions", [
      { title: "At", cell: (row) => ({ text: clock(row.at), kind: "plain" }) },
      { title: "Wanted", number: true, cell: (row) => row.desired ?? "hold" },
      { title: "Ready", number: true, cell: (row) => row.ready },
      { title: "On", wide: true, cell: (row) => Object.entries(row.groups).map(([name, count]) => `${count} ${name}`).join(", ") || "as it is" },
      { title: "Why", cell: (row) => row.reasons.join("; ") + (row.is_dry_run ? " (dry run: not carried out)" : "") },
      { title: "Policy", wide: true, cell: (row) => `${row.policy}, ${row.revision}` },
    ], "Nothing was decided yet.");
    this.starts = h("div");
    this.replicas = new Table("Replicas", [
      { title: "Replica", cell: (row) => ({ text: row.id, note: row.reason?.split("\n")[0] ?? "" }) },
      { title: "State", cell: (row) => ({ text: row.state, kind: stateCell(row.state).kind }) },
      { title: "On", cell: (row) => `${row.accelerator} ${row.unit}${row.share === 100 ? "" : `, ${row.share} %`}` },
      { title: "In flight", number: true, cell: (row) => `${row.in_flight ?? "–"} / ${row.limit === null ? "?" : row.limit || "no limit"}` },
      { title: "Age", number: true, wide: true, cell: (row) => seconds(row.age_s) },
      { title: "Processes", wide: true, cell: (row) => row.pids.join(" ") },
    ], "No replica.");
    this.rollouts = new Rollouts(name);
    this.logs = new Logs(name);
    const ranges = h("fieldset", { class: "tools" }, h("legend", {}, "Time range"),
      ...RANGES.map(([span, words]) => h("label", {},
        h("input", { type: "radio", name: "range", value: span, checked: span === this.span, onchange: () => this.choose(span) }), words)));
    this.element = h("div", {},
      h("p", { class: "small" }, h("a", { href: "/console" }, "All functions")),
      h("h1", {}, name, " ", this.state, " ", this.sla), this.facts,
      h("section", {}, h("h2", {}, "Why it has its size"), this.summary),
      h("section", {}, h("h2", {}, "Live"), ranges, h("div", { class: "charts" }, ...Object.values(this.charts).map((chart) => chart.element))),
      h("section", {}, h("h2", {}, "Groups"), this.groups.element,
        h("h3", {}, "Idle replicas"), this.idle.element,
        h("h3", {}, "Inferences per request, last minute"), this.sizes.element),
      h("section", {}, h("h2", {}, "Revisions and rollouts"), this.rollouts.element),
      h("section", {}, h("h2", {}, "Decisions"), this.decisions.element),
      h("section", {}, h("h2", {}, "Cold starts"), this.starts),
      h("section", {}, h("h2", {}, "Replicas"), this.replicas.element),
      h("section", {}, h("h2", {}, "Logs"), this.logs.element));
  }

  choose(span) {
    this.span = span;
    this.history.clear();
  }

  path() {
    const step = this.span <= FINE_S ? 1 : COARSE_STEP_S;
    const { newest } = this.history;
    const missed = newest === null ? this.span : Math.min(this.span, Math.ceil((performance.now() - this.updatedAt) / 1000) + 2 * step + 2);
    const since = Math.max(step, missed);
    this.asked = this.span;
    return `/console/data/functions/${encodeURIComponent(this.name)}?since=${since}&step=${step}`;
  }

  update(data) {
    this.data = data;
    this.updatedAt = performance.now();
    const view = data.function;
    show(this.state, stateCell(view.state));
    show(this.sla, slaCell(data.sla));
    this.showFacts(data);
    refill(this.summary, JSON.stringify([data.summary, view.message]), () => [
      ...(view.message ? [h("pre", { class: "fault" }, view.message)] : []),
      ...data.summary.map((text) => h("p", {}, text)),
    ]);
    if (this.asked === this.span) {
      this.history.add(data.series, this.span);
      this.draw(data);
    }
    const several = view.revisions.length > 1;
    this.groups.update(view.revisions.flatMap((revision) => revision.groups.map((group) => ({ ...group, revision: several ? revision.id : "" }))),
      (row) => `${row.revision} ${row.accelerator}`);
    this.idle.update(data.idle.map((row) => ({ ...row, revision: several ? row.revision : "" })), (row) => `${row.revision} ${row.accelerator}`);
    this.sizes.update(view.traffic.sizes, (row) => String(row[0]));
    this.decisions.update(data.decisions, (row) => `${row.at} ${row.revision}`);
    refill(this.starts, JSON.stringify(data.cold_starts), () => coldStarts(data.cold_starts));
    this.replicas.update(view.revisions.flatMap((revision) => revision.replicas), (row) => row.id);
    this.rollouts.update(data);
  }

  showFacts(data) {
    const { traffic, price_per_hour: price, path_url: url, revision, models, protocol, desired, ready } = data.function;
    const percentiles = percentilesOf(traffic, data.sla);
    const rows = [
      ["Target", target(data.sla)],
      ["Ready / wanted", `${ready} / ${desired ?? "hold"}`],
      ["Requests/s, last 5 s", rate(traffic.requests_per_s)],
      ["Inferences/s, last 5 s", rate(traffic.inferences_per_s)],
      [`${percentiles.map(([percentile]) => `p${number(percentile)}`).join(" / ")}, last minute`, percentiles.map(([, value]) => seconds(value)).join(" / ")],
      ["Waiting", String(traffic.waiting)],
      ["Last minute", `${traffic.requests} requests, ${traffic.failed} failed, ${traffic.refused} refused, ${traffic.expired} expired`],
      ["Price/h", number(price)],
      ["Serving", revision],
      ["Models", `${models.join(", ")} (${protocol})`],
      ["Address", url ?? data.function.url ?? "–"],
    ];
    if (this.values === undefined) {
      this.names = rows.map(() => h("dt"));
      this.values = rows.map(() => h("dd"));
      this.facts.replaceChildren(...rows.map((_, index) => h("div", {}, this.names[index], this.values[index])));
    }
    rows.forEach(([name, text], index) => {
      setText(this.names[index], name);
      setText(this.values[index], text);
    });
  }

  draw(data) {
    const { history, charts } = this;
    const whole = (metric, label, colour, more = {}) => history.of(metric).filter((line) => line.group === null)
      .map((line) => ({ label, colour, points: line.points, ...more }));
    const byGroup = (metric, more = {}) => history.of(metric).filter((line) => line.group !== null)
      .map((line, index) => ({ label: line.group, colour: COLOURS[index % COLOURS.length], points: line.points, ...more }));
    const tail = data.sla.percentile === 50 ? [] : whole("tail_s", `p${number(data.sla.percentile)}`, "--line1");
    const latency = [...tail, ...whole("p50_s", "p50", "--line2")];
    const limit = data.sla.latency_s === null || latency.length === 0 ? []
      : [{ label: "target", colour: "--bad", dashed: true, points: new Map([...latency[0].points.keys()].map((at) => [at, data.sla.latency_s])) }];
    charts.rate.update([...whole("rps", "requests/s", "--line1"), ...whole("lambda_ips", "inferences/s", "--line2")]);
    charts.latency.update([...latency, ...limit]);
    charts.replicas.update([...whole("desired", "wanted", "--line3", { steps: true, dashed: true }), ...whole("ready", "ready", "--line1", { steps: true }), ...whole("starting", "starting", "--line2", { steps: true })]);
    charts.waiting.update(whole("waiting", "waiting", "--line1"));
    const asked = byGroup("ips").map((line) => ({ ...line, label: `per request, ${line.label}`, points: quotient(line.points, byGroup("rps").find((other) => other.label === line.label)?.points) }));
    const formed = byGroup("server-batch").map((line) => ({ ...line, label: `in the server, ${line.label}`, dashed: true }));
    charts.batch.update([...asked, ...formed]);
    charts.lambda.update(byGroup("ips"));
    charts.weights.update(byGroup("weight", { steps: true }));
    charts.mu.update(byGroup("mu_ips"));
    charts.busy.update(byGroup("busy"));
  }

  faults() {
    const { function: view, sla } = this.data;
    const found = [];
    if (["failed", "no-room"].includes(view.state)) found.push(`${view.name} is ${view.state}: ${view.message ?? "no reason reported"}`);
    if (sla.state === "missed") found.push(`${view.name} misses its SLA (${target(sla)})`);
    for (const revision of view.revisions) {
      if (revision.crash !== null) found.push(`${revision.id}: ${revision.crash.count} crashes in the last hour, the last one ${revision.crash.replica}: ${revision.crash.reason}`);
    }
    return found;
  }
}

/** The percentiles of the last minute, that of the SLA among them, as [percentile, seconds]. */
function percentilesOf(traffic, sla) {
  const found = new Map([[50, traffic.p50_s], [95, traffic.p95_s], [99, traffic.p99_s], [sla.percentile, traffic.tail_s]]);
  return [...found].sort(([one], [other]) => one - other);
}

/** Inferences per request: both rates are means of the same window. Without requests there is none. */
function quotient(inferences, requests) {
  return new Map([...inferences].map(([at, value]) => [at, value !== null && requests?.get(at) > 0 ? value / requests.get(at) : null]));
}

function show(element, { text, kind }) {
  refill(element, text, () => badge(text, kind));
}

function mu(row) {
  if (row.mu_ips === null) return "–";
  return `${number(row.mu_ips)}/s${row.mu_source === "learnt" || row.mu_source === null ? "" : ` (${row.mu_source})`}`;
}

/** Each start as a bar of its phases on one scale, and the same as a table row for readers. */
function coldStarts(starts) {
  if (starts.length === 0) return h("p", { class: "quiet" }, "No replica was started yet.");
  const longest = Math.max(...starts.map((start) => start.total_s), 0.001);
  const legend = h("ul", { class: "legend", "aria-hidden": "true" }, ...PHASES.map(([key, name]) => h("li", {}, h("i", { class: `phase ${key}` }), name)));
  const head = h("tr", {}, ...["At", "Replica", "Total", "Timeline", ...PHASES.map(([, name]) => name)].map((text, index) => h("th", { scope: "col", class: index > 3 ? "n wide" : null }, text)));
  const rows = starts.map((start) => {
    const bar = h("div", { class: "bar" });
    bar.setAttribute("aria-hidden", "true");
    let left = 0;
    for (const [key] of PHASES) {
      const width = 100 * (start.phases[key] ?? 0) / longest;
      if (width <= 0) continue;
      const part = h("i", { class: `phase ${key}` });
      part.style.left = `${left}%`;
      part.style.width = `${width}%`;
      bar.append(part);
      left += width;
    }
    return h("tr", {}, h("th", { scope: "row" }, clock(start.at)), h("td", {}, start.replica, h("div", { class: "quiet small" }, `${start.accelerator}${start.from_zero ? ", from zero" : ""}`)),
      h("td", { class: "n" }, seconds(start.total_s)), h("td", { class: "timeline" }, bar),
      ...PHASES.map(([key]) => h("td", { class: "n wide" }, seconds(start.phases[key]))));
  });
  return [legend, h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Cold starts" },
    h("table", {}, h("caption", {}, "Cold starts by phase"), h("thead", {}, head), h("tbody", {}, ...rows)))];
}
