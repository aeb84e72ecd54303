for (const body of document.querySelectorAll("#map .body:has(svg)")) {
  const texts = [...body.querySelectorAll(".texts li")].map(item => item.textContent);
  const maps = [...body.querySelectorAll("svg")].map(svg => [...svg.querySelectorAll("[id^=dots-] use")]);
  for (const points of maps) points.forEach((point, i) => {
    const title = document.createElementNS(point.namespaceURI, "title");
    title.textContent = texts[i], point.append(title);
    point.setAttribute("class", "point"), point.setAttribute("tabindex", "-1"), point.setAttribute("role", "img");
    point.ownerSVGElement.setAttribute("role", "group") });
  const reader = body.querySelector(".reader");
  const middle = point => { const box = point.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] };
  const nearest = (points, score) => points.map((point, i) => [score(...middle(point)), i]).sort((a, b) => a[0] - b[0])[0];
  const search = body.querySelector(".search"), list = search.querySelector("ol");
  search.hidden = false;
  search.querySelector("input").addEventListener("input", event => {
    const wanted = event.target.value.trim().toLowerCase();
    const hits = texts.flatMap((text, i) => wanted && text.toLowerCase().includes(wanted) ? [i] : []), lit = new Set(hits);
    for (const points of maps) points.forEach((point, i) => { point.classList.toggle("hit", lit.has(i)); point.classList.toggle("dim", !!wanted && !lit.has(i)) });
    search.querySelector("output").textContent = wanted && `${hits.length} of ${texts.length} texts${hits.length > 20 ? ", the first 20:" : ""}`;
    list.replaceChildren(...hits.slice(0, 20).map(i => {
      const item = document.createElement("li"), button = document.createElement("button");
      button.type = "button", button.dir = "auto", button.textContent = texts[i];
      button.addEventListener("click", () => show(i)), button.addEventListener("focus", () => show(i));
      item.append(button);
      return item }));
  });
  const show = i => maps.forEach(points => points.forEach((point, j) => point.classList.toggle("on", i === j))
    || (reader.textContent = texts[i]));
  for (const points of maps) {
    const svg = points[0].ownerSVGElement, keys = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const touch = event => { const [distance, i] = nearest(points, (x, y) => Math.hypot(x - event.clientX, y - event.clientY)); if (distance < 24) show(i) };
    svg.addEventListener("pointermove", touch), svg.addEventListener("pointerdown", touch), points[0].setAttribute("tabindex", "0");
    points.forEach((point, i) => point.addEventListener("focus", () => show(i)) || point.addEventListener("keydown", event => {
      const [right, down] = keys[event.key] || [], [x0, y0] = middle(point);
      if (right === undefined) return;
      const ahead = (x, y) => { const along = (x - x0) * right + (y - y0) * down; return along > 0.5 ? along + 2 * Math.abs((x - x0) * down + (y - y0) * right) : Infinity };
      const [cost, next] = nearest(points, ahead);
      event.preventDefault(), cost < Infinity && points[next].focus() }));
  }
}
