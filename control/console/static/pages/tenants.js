// Tenants, their quotas and what they have used since the control process started.

import { h, Table } from "../dom.js";
import { number } from "../format.js";

export class Tenants {
  title = "Tenants";

  constructor() {
    this.table = new Table("Tenants", [
      { title: "Tenant", cell: (row) => row.name },
      { title: "Keys", number: true, cell: (row) => number(row.keys) },
      { title: "Weight", number: true, cell: (row) => number(row.weight) },
      { title: "Priority", number: true, wide: true, cell: (row) => number(row.priority) },
      { title: "May call", wide: true, cell: (row) => row.functions.join(", ") || "every function" },
      { title: "Quotas", wide: true, cell: (row) => Object.entries(row.quotas).map(([name, value]) => `${name} ${value}`).join(", ") || "none" },
      { title: "Requests", number: true, cell: (row) => row.requests },
      { title: "Inferences", number: true, cell: (row) => row.inferences },
      { title: "Tokens", number: true, cell: (row) => row.tokens },
      { title: "Over quota", number: true, cell: (row) => row.refused },
    ], "No tenant is declared: the tenants file is named by [tenants] file in the settings.");
    this.element = h("div", {}, h("h1", {}, "Tenants"),
      h("p", { class: "quiet" }, "Usage since the control process started."), this.table.element);
  }

  path() {
    return "/console/data/tenants";
  }

  update(data) {
    this.table.update(data.tenants, (row) => row.name);
  }

  faults() {
    return [];
  }
}
