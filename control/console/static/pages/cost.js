// The price of what runs now, by function.

import { h, refill, setText, Table } from "../dom.js";
import { number, rate } from "../format.js";

export class Cost {
  title = "Cost";

  constructor() {
    this.summary = h("p");
    this.missing = h("div");
    this.table = new Table("Price of what runs now", [
      { title: "Function", cell: (row) => ({ text: row.function, href: `/console/functions/${encodeURIComponent(row.function)}` }) },
      { title: "Replicas", cell: (row) => Object.entries(row.replicas).map(([name, count]) => `${count} on ${name}`).join(", ") || "none" },
      { title: "Price/h", number: true, cell: (row) => number(row.price_per_hour) },
      { title: "Inferences/s", number: true, cell: (row) => rate(row.inferences_per_s) },
      { title: "Price per 1,000 inferences", number: true, cell: (row) => number(row.price_per_1k, 3) },
    ], "No function is deployed.");
    this.element = h("div", {}, h("h1", {}, "Cost"), this.summary, this.table.element, this.missing);
  }

  path() {
    return "/console/data/cost";
  }

  update(data) {
    setText(this.summary, `What runs now costs ${number(data.price_per_hour)} per hour, in the currency of the accelerators' prices.`);
    this.table.update(data.rows, (row) => row.function);
    refill(this.missing, JSON.stringify(data.missing), () => data.missing.map((text) => h("p", { class: "quiet" }, text)));
  }

  faults() {
    return [];
  }
}
