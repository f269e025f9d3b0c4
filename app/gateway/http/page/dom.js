// Elements of the page: found by id, made and filled. Texts are set as text, never as HTML.

export const find = (id) => document.getElementById(id);

export function make(tag, name = "", text = "") {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text) node.textContent = text;
  return node;
}

export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
