// Requests that wait in the waiting room, by function and revision.

import { h, setText, Table } from "../dom.js";
import { count, number, seconds } from "../format.js";

export class Waiting {
  title = "Waiting room";

  constructor() {
    this.summary = h("p");
    const of = (row, name) => row.traffic?.[name];
    this.table = new Table("Waiting requests", [
      { title: "Function", cell: (row) => row.revision === null
        ? { text: row.function, href: `/console/functions/${encodeURIComponent(row.function)}`, note: row.why ?? "" }
        : { text: `\u2003${row.revision}`, note: row.why ?? "" } },
      { title: "Waiting", number: true, cell: (row) => number(row.waiting) },
      { title: "Oldest", number: true, cell: (row) => row.traffic ? seconds(row.waiting ? row.traffic.oldest_waiting_s : null) : "–" },
      { title: "Inferences", number: true, wide: true, cell: (row) => number(of(row, "waiting_inferences")) },
      { title: "Ready / wanted", number: true, cell: (row) => `${row.ready} / ${row.desired ?? "hold"}` },
      { title: "Starting", number: true, cell: (row) => number(row.starting) },
      { title: "Refused, last minute", number: true, wide: true, cell: (row) => number(of(row, "refused")) },
      { title: "Expired", number: true, wide: true, cell: (row) => number(of(row, "expired")) },
      { title: "Dropped", number: true, wide: true, cell: (row) => number(of(row, "dropped")) },
      { title: "Cancelled", number: true, wide: true, cell: (row) => number(of(row, "cancelled")) },
    ], "No function is deployed.");
    this.element = h("div", {}, h("h1", {}, "Waiting room"), this.summary, this.table.element);
  }

  path() {
    return "/console/data/waiting";
  }

  update(data) {
    setText(this.summary, data.waiting === 0 ? "No request waits." : `Waiting now: ${count(data.waiting, "request")}, the oldest for ${seconds(data.oldest_s)}.`);
    this.table.update(data.rows, (row) => `${row.function} ${row.revision}`);
  }

  faults() {
    return [];
  }
}
