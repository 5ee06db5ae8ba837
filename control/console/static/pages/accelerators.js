// Accelerators, and what is placed on each of their units.

import { h, refill, setText } from "../dom.js";
import { bytes, count, number } from "../format.js";

export class Accelerators {
  title = "Accelerators";

  constructor() {
    this.cards = h("div");
    this.element = h("div", {}, h("h1", {}, "Accelerators"), this.cards);
  }

  path() {
    return "/console/data/accelerators";
  }

  update(data) {
    // Replicas keep their elements, and so the focus, while only their work changes.
    const shape = data.accelerators.map(({ accelerator, units }) => [accelerator.name, units.map((unit) => unit.placed.map((each) => each.replica))]);
    refill(this.cards, JSON.stringify(shape), () => data.accelerators.length === 0
      ? h("p", { class: "quiet" }, "No accelerator is known.")
      : data.accelerators.map(card));
    data.accelerators.forEach((each, index) => write(this.cards.children[index], each));
  }

  faults() {
    return [];
  }
}

function card({ accelerator, units }) {
  return h("section", { class: "card", "aria-label": accelerator.name },
    h("h2", {}, accelerator.name),
    h("p", { class: "quiet" }),
    h("ul", { class: "units" }, ...units.map((unit) => h("li", { class: unit.placed.length ? "unit" : "unit free" },
      h("span", { class: "small quiet" }, `unit ${unit.index}`),
      ...(unit.placed.length === 0 ? [h("span", {}, "free")] : unit.placed.map((each) => h("div", {},
        h("a", { href: `/console/functions/${encodeURIComponent(each.function)}` }, each.function), h("span", { class: "small" }))))))));
}

/** Writes what changes into a card that `card` has made. */
function write(card, { accelerator, units, failed }) {
  const facts = [
    accelerator.kind,
    `${count(accelerator.in_use, "replica")} on ${count(accelerator.count, "unit")}`,
    accelerator.cores ? `${count(accelerator.cores, "core")} each` : null,
    accelerator.memory_bytes ? `${bytes(accelerator.memory_bytes)} each` : null,
    accelerator.compute_capability ? `compute ${accelerator.compute_capability}` : null,
    accelerator.driver ? `driver ${accelerator.driver}` : null,
    accelerator.mps ? "MPS" : null,
    accelerator.mig ? "MIG" : null,
    `${number(accelerator.price_per_hour)}/h each`,
    accelerator.emulated ? "emulated: service times come from a profile" : null,
    failed ? `${count(failed, "failed replica")} without a place` : null,
  ];
  setText(card.querySelector("p"), facts.filter((fact) => fact !== null).join(", "));
  const places = card.querySelectorAll(".unit > div");
  units.flatMap((unit) => unit.placed).forEach((each, index) => {
    places[index].className = `placed ${each.state}`;
    setText(places[index].lastChild, words(each));
  });
}

function words(each) {
  const share = each.share === 100 ? "" : `, ${each.share} %`;
  const cores = each.cores ? `, ${count(each.cores, "core")}` : "";
  const limit = each.limit ? ` of ${each.limit}` : "";
  const work = each.in_flight === null ? "" : `, ${each.in_flight}${limit} slots in use`;
  return `${each.replica}: ${each.state}${share}${cores}${work}`;
}
