// The price of what runs now, and the cost of the last hour by function and by tenant.

import { h, setText, Table } from "../dom.js";
import { number, rate } from "../format.js";

export class Cost {
  title = "Cost";

  constructor() {
    this.now = h("p");
    this.hour = h("p");
    this.table = new Table("Price of what runs now", [
      { title: "Function", cell: link },
      { title: "Replicas", cell: (row) => Object.entries(row.replicas).map(([name, held]) => `${held} on ${name}`).join(", ") || "none" },
      { title: "Price/h", number: true, cell: (row) => number(row.price_per_hour) },
      { title: "Inferences/s", number: true, cell: (row) => rate(row.inferences_per_s) },
      { title: "Price per 1,000 inferences", number: true, cell: (row) => number(row.price_per_1k, 3) },
    ], "No function is deployed.");
    this.functions = span("Cost of the last hour by function", "Function");
    this.tenants = span("Cost of the last hour by tenant", "Tenant");
    this.element = h("div", {}, h("h1", {}, "Cost"),
      h("h2", {}, "Now"), this.now, this.table.element,
      h("h2", {}, "Last hour by function"), this.hour, this.functions.element,
      h("h2", {}, "Last hour by tenant"), this.tenants.element);
  }

  path() {
    return "/console/data/cost";
  }

  update(data) {
    setText(this.now, `What runs now costs ${number(data.price_per_hour)} per hour, in the currency of the accelerators' prices.`);
    this.table.update(data.rows, (row) => row.function);
    const { total } = data.functions;
    setText(this.hour, `${number(total.cost)} for ${number(total.device_s)} device seconds: ${number(total.busy_s)} busy, ${number(total.idle_s)} idle, `
      + `${number(total.starting_s)} starting. Other times: tidegate cost.`);
    this.functions.update(data.functions.rows, (row) => row.name);
    this.tenants.update(data.tenants.rows, (row) => row.name);
  }

  faults() {
    return [];
  }
}

function link(row) {
  return { text: row.function, href: `/console/functions/${encodeURIComponent(row.function)}` };
}

function span(caption, title) {
  return new Table(caption, [
    { title, cell: (row) => row.name },
    { title: "Cost", number: true, cell: (row) => number(row.cost) },
    { title: "Device seconds", number: true, cell: (row) => number(row.device_s) },
    { title: "busy", number: true, wide: true, cell: (row) => number(row.busy_s) },
    { title: "idle", number: true, wide: true, cell: (row) => number(row.idle_s) },
    { title: "starting", number: true, wide: true, cell: (row) => number(row.starting_s) },
    { title: "Requests", number: true, cell: (row) => row.requests },
    { title: "per 1,000 requests", number: true, cell: (row) => number(row.cost_per_1k_requests, 3) },
    { title: "per million tokens", number: true, wide: true, cell: (row) => number(row.cost_per_million_tokens, 3) },
  ], "No device time was used in the last hour.");
}
