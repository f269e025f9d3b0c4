// Elements of trees that markup.py makes. Nothing is parsed as HTML: only the tags and attributes below are made.

import { make } from "/page/dom.js";

const TAGS = new Set(
  ("p h1 h2 h3 h4 h5 h6 ul ol li blockquote hr br strong em s table thead tbody tr th td pre code figcaption figure span a").split(" "),
);
const CLASSES = new Set(
  ("comment wrong em h2 string strong h3 keyword number builtin name center right code call image").split(" "),
);
const LINK = /^(?:https?:\/\/|mailto:)[^\s\x00-\x20\x7f-\x9f]+$/i;

/** The nodes of trees. An element that is not of the lists leaves its text. */
export function nodesOf(trees) {
  return trees.map(nodeOf);
}

function nodeOf(tree) {
  if (!Array.isArray(tree)) return document.createTextNode(String(tree));
  const [tag, attributes, ...children] = tree;
  const node = TAGS.has(tag) ? document.createElement(tag) : document.createDocumentFragment();
  if (TAGS.has(tag)) dress(node, tag, attributes);
  node.append(...children.map(nodeOf));
  if (tag === "figure") node.firstElementChild?.append(copyButton(node.querySelector("pre")));
  if (tag === "table") {
    const box = make("div", "table");
    box.tabIndex = 0;
    box.append(node);
    return box;
  }
  return node;
}

function dress(node, tag, { class: name, href, start }) {
  if (CLASSES.has(name)) node.className = name;
  if (tag === "ol" && /^\d{1,9}$/.test(start)) node.start = Number(start);
  if (tag === "a" && LINK.test(href)) {
    node.href = href;
    node.rel = "noopener noreferrer";
    node.target = "_blank";
  }
}

function copyButton(pre) {
  const button = make("button", "copy", "Copy");
  button.type = "button";
  button.addEventListener("click", () => copy(button, pre?.textContent ?? ""));
  return button;
}

/** Copy a text, and say so on the button. */
export async function copy(button, text) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // A page without https has no clipboard, but on this machine.
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = label), 1500);
}

/** Blocks that grow: those before the open one are final. */
export class GrowingBlocks {
  constructor(box) {
    this.box = box;
    this.open = [];
  }

  take({ final, open, anew }) {
    if (anew) this.box.replaceChildren();
    for (const node of this.open) node.remove();
    this.open = nodesOf(open);
    this.box.append(...nodesOf(final), ...this.open);
  }
}
