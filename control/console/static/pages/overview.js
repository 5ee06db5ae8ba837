// All functions: their SLA, replicas, rate, latency, waiting requests and price.

import { h, setText, Table } from "../dom.js";
import { count, number, rate, seconds, since, slaCell, stateCell } from "../format.js";

export class Overview {
  title = "Functions";

  constructor() {
    this.summary = h("p", { class: "quiet" });
    this.filter = h("input", { type: "search", id: "filter", autocomplete: "off", oninput: () => this.draw() });
    this.table = new Table("Functions", [
      { title: "Function", cell: (row) => ({ text: row.name, href: `/console/functions/${encodeURIComponent(row.name)}`, note: row.message ?? "" }) },
      { title: "State", cell: (row) => stateCell(row.state) },
      { title: "SLA, last minute", cell: (row) => slaCell(row.sla) },
      { title: "Ready / wanted", number: true, cell: (row) => ready(row) },
      { title: "Requests/s", number: true, cell: (row) => rate(row.traffic.requests_per_s) },
      { title: "p50", number: true, wide: true, cell: (row) => seconds(row.traffic.p50_s) },
      { title: "p95", number: true, wide: true, cell: (row) => seconds(row.traffic.p95_s) },
      { title: "p99", number: true, wide: true, cell: (row) => seconds(row.traffic.p99_s) },
      { title: "Waiting", number: true, cell: (row) => number(row.traffic.waiting) },
      { title: "Price/h", number: true, wide: true, cell: (row) => number(row.price_per_hour) },
    ], "No function is deployed. Deploy one with: tidegate deploy FILE");
    this.workers = new Table("Gateway workers", [
      { title: "Worker", cell: (row) => row.worker },
      { title: "State", cell: (row) => row.state },
      { title: "Process", number: true, cell: (row) => row.pid },
      { title: "Restarts", number: true, cell: (row) => row.restarts },
      { title: "Route table", number: true, wide: true, cell: (row) => row.table },
      { title: "Connections", number: true, cell: (row) => row.connections },
    ], "No gateway worker runs.");
    this.element = h("div", {},
      h("h1", {}, "Functions"), this.summary,
      h("p", { class: "tools" }, h("label", { for: "filter" }, "Show names with"), this.filter),
      this.table.element, h("h2", {}, "Gateway workers"), this.workers.element);
  }

  path() {
    return "/console/data/overview";
  }

  update(data) {
    this.data = data;
    this.draw();
  }

  unchanged() {
    this.head();
  }

  head() {
    const { data } = this;
    const missed = data.functions.filter((row) => row.sla.state === "missed").length;
    setText(this.summary, `${count(data.functions.length, "function")}, ${missed} of them below the SLA; price of what runs ${number(data.price_per_hour)}/h. `
      + `Tidegate ${data.version}, up ${since(data.since)}, gateway ${data.gateway}`);
  }

  draw() {
    if (this.data === undefined) return;
    const part = this.filter.value.trim().toLowerCase();
    this.head();
    this.table.update(this.data.functions.filter((row) => row.name.toLowerCase().includes(part)), (row) => row.name);
    this.workers.update(this.data.gateways, (row) => row.worker);
  }

  faults() {
    const { functions, faults } = this.data;
    return [
      ...faults,
      ...functions.filter((row) => ["failed", "no-room"].includes(row.state)).map((row) => `${row.name} is ${row.state}: ${row.message ?? "no reason reported"}`),
      ...functions.filter((row) => row.sla.state === "missed").map((row) => `${row.name} misses its SLA`),
    ];
  }
}

function ready(row) {
  const emulated = row.emulated ? ` (${row.emulated} emulated)` : "";
  const starting = row.starting ? ` +${row.starting} starting` : "";
  const sleeping = row.sleeping ? `, ${row.sleeping} asleep` : "";
  return `${row.ready}${emulated} / ${row.desired ?? "hold"}${starting}${sleeping}`;
}
