// Elements, and tables that change in place: a screen reader keeps its position, and 200 rows cost little.

/** Makes an element: h("td", {class: "n"}, "text", child). Text is never read as HTML. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets the text of an element if it is another one. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replaces the children of an element only if `key` is another one than last time. */
export function refill(element, key, make) {
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  const made = [make()].flat().filter((child) => child !== null);
  keepingFocus(element, () => element.replaceChildren(...made));
}

/** Changes the children of an element. If the focused one goes, the focus goes to the one that looks or reads the same. */
function keepingFocus(element, change) {
  const held = document.activeElement;
  const isInside = held !== element && element.contains(held);
  change();
  if (!isInside || element.contains(held)) return;
  const alike = [...element.querySelectorAll(held.localName)];
  const same = alike.find((each) => each.outerHTML === held.outerHTML) ?? alike.find((each) => each.textContent === held.textContent);
  same?.focus({ preventScroll: true });
}

/** A word with a colour. The word alone says it. */
export function badge(word, kind) {
  return h("span", { class: `badge ${kind}` }, word);
}

/**
 * A table in a box that scrolls sideways where it is too wide.
 * columns: [{title, cell: row => text or {text, kind, href, title}, number, wide}]; `wide` ones are left out on phones.
 */
export class Table {
  constructor(caption, columns, empty) {
    this.columns = columns;
    this.rows = new Map();
    this.body = h("tbody");
    this.note = h("p", { class: "quiet" }, empty);
    const head = columns.map((column) => h("th", { scope: "col", class: classes(column) }, column.title));
    const table = h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, ...head)), this.body);
    this.box = h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption }, table);
    this.element = h("div", {}, this.box, this.note);
  }

  update(rows, keyOf) {
    this.note.hidden = rows.length > 0;
    this.box.hidden = rows.length === 0;
    const gone = new Set(this.rows.keys());
    let before = null;
    for (const row of rows) {
      const key = keyOf(row);
      gone.delete(key);
      let line = this.rows.get(key);
      if (line === undefined) {
        line = h("tr", {}, ...this.columns.map((column, index) =>
          index === 0 ? h("th", { scope: "row" }) : h("td", { class: classes(column) })));
        this.rows.set(key, line);
      }
      const next = before === null ? this.body.firstElementChild : before.nextElementSibling;
      if (line !== next) this.body.insertBefore(line, next);
      this.columns.forEach((column, index) => fill(line.children[index], column.cell(row)));
      before = line;
    }
    for (const key of gone) {
      this.rows.get(key).remove();
      this.rows.delete(key);
    }
  }
}

function classes(column) {
  return [column.number ? "n" : "", column.wide ? "wide" : ""].join(" ").trim() || null;
}

function fill(cell, content) {
  if (typeof content !== "object" || content === null) {
    if (cell.dataset.rich) {
      delete cell.dataset.rich;
      cell.replaceChildren();
    }
    setText(cell, String(content ?? "–"));
    return;
  }
  const key = JSON.stringify(content);
  if (cell.dataset.rich === key) return;
  cell.dataset.rich = key;
  const inner = content.href ? h("a", { href: content.href }, content.text)
    : content.kind ? badge(content.text, content.kind) : h("span", {}, content.text);
  if (content.title) inner.setAttribute("title", content.title);
  const note = content.note ? [h("div", { class: "quiet small note", title: content.note }, content.note)] : [];
  keepingFocus(cell, () => cell.replaceChildren(inner, ...note));
}
