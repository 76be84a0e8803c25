// The playground of docs/explanation/gradient.md: neighbours on a circle that can be moved, and how
// strongly a contrastive loss pulls the query to each. A test compares `pulls` with the derivatives
// of cone_jax.losses.
(() => {
  const softmax = (values) => {
    const largest = Math.max(...values);
    const weights = values.map((value) => Math.exp(value - largest));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    return weights.map((weight) => weight / total);
  };

  // -tau times the derivative of the loss with respect to each cosine.
  const pulls = (cosines, positive, tau, form) => {
    const among = softmax(cosines.map((u) => u / tau));
    const chosen = cosines.filter((_, index) => positive[index]);
    if (!chosen.length) return cosines.map(() => 0);
    const inside = softmax(chosen.map((u) => u / tau));
    let next = 0;
    return cosines.map((_, index) => {
      if (!positive[index]) return -among[index];
      const share = form === "in" ? inside[next++] : 1 / chosen.length;
      return share - among[index];
    });
  };
  window.coneGradient = { pulls };

  const shown = (value, digits) => value.toFixed(digits).replace(/^-(0\.0*)$/, "$1");

  const START = {
    query: 0.1,
    anchors: [
      { angle: 0.8, same: true }, { angle: -0.75, same: true }, { angle: 1.4, same: true },
      { angle: 2.7, same: true }, { angle: -0.45, same: false }, { angle: -1.5, same: false },
      { angle: 2.1, same: false },
    ],
  };
  const NS = "http://www.w3.org/2000/svg";
  const make = (name, attributes, parent) => {
    const element = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.append(element);
    return element;
  };
  const place = (angle, radius = 118) => [150 + radius * Math.cos(angle), 150 - radius * Math.sin(angle)];

  const start = (root) => {
    root.innerHTML = `
      <div class="controls">
        <label>loss <select><option value="in">L_in</option><option value="out">L_out</option></select></label>
        <label>τ <input type="range" min="0.03" max="0.5" step="0.01" value="0.1"> <output>0.10</output></label>
        <button class="md-button" data-do="step">one step</button>
        <button class="md-button" data-do="again">start again</button>
      </div>
      <div class="scene">
      <svg class="cone-figure" viewBox="0 0 300 300" role="img"
        aria-label="A query and its neighbours on a circle; lines show how strongly each one pulls"></svg>
      <table><thead><tr><th>neighbour</th><th>cosine</th><th>pull</th></tr></thead><tbody></tbody></table></div>`;
    const svg = root.querySelector("svg");
    const [form, tau] = [root.querySelector("select"), root.querySelector("input")];
    let state = structuredClone(START);

    const found = () => {
      const cosines = state.anchors.map(({ angle }) => Math.cos(angle - state.query));
      const same = state.anchors.map((anchor) => anchor.same);
      return [cosines, pulls(cosines, same, Number(tau.value), form.value)];
    };
    const draw = () => {
      const [cosines, strength] = found();
      root.querySelector("output").textContent = Number(tau.value).toFixed(2);
      svg.replaceChildren();
      make("circle", { cx: 150, cy: 150, r: 118, fill: "var(--f-panel)", stroke: "var(--f-line)" }, svg);
      const [x, y] = place(state.query);
      state.anchors.forEach(({ angle, same }, index) => {
        const [ax, ay] = place(angle);
        const colour = strength[index] > 0 ? "var(--f-green)" : "var(--f-orange)";
        make("path", {
          d: `M${x} ${y}L${ax} ${ay}`, stroke: colour, fill: "none", "stroke-linecap": "round",
          "stroke-width": 0.6 + 16 * Math.abs(strength[index]), opacity: 0.6,
          "stroke-dasharray": strength[index] > 0 ? "none" : "2 7",
        }, svg);
        const dot = make("circle", {
          cx: ax, cy: ay, r: 9, fill: same ? "var(--f-green)" : "var(--f-orange)", class: "handle",
          "data-index": index,
        }, svg);
        make("title", {}, dot).textContent = "drag me";
        const [tx, ty] = place(angle, 138);
        make("text", { x: tx, y: ty + 4, "font-size": 11, "text-anchor": "middle", fill: "var(--f-muted)" }, svg)
          .textContent = index + 1;
      });
      make("circle", {
        cx: x, cy: y, r: 11, fill: "var(--f-blue)", stroke: "var(--f-paper)", "stroke-width": 2,
        class: "handle", "data-index": -1,
      }, svg);
      root.querySelector("tbody").innerHTML = state.anchors.map(({ same }, index) => `<tr>
        <td>${index + 1}, ${same ? "same class" : "another class"}</td>
        <td>${shown(cosines[index], 2)}</td><td>${shown(strength[index], 3)}</td></tr>`).join("");
    };
    svg.addEventListener("pointerdown", (event) => {
      const index = event.target.dataset.index;
      if (index === undefined) return;
      const move = (to) => {
        const box = svg.getBoundingClientRect();
        const angle = Math.atan2(box.top + box.height / 2 - to.clientY, to.clientX - box.left - box.width / 2);
        if (Number(index) < 0) state.query = angle;
        else state.anchors[index].angle = angle;
        draw();
      };
      const stop = () => {
        window.removeEventListener("pointermove", move);
        window.removeEventListener("pointerup", stop);
      };
      window.addEventListener("pointermove", move);
      window.addEventListener("pointerup", stop);
      event.preventDefault();
    });
    root.addEventListener("click", (event) => {
      if (event.target.dataset.do === "again") state = structuredClone(START);
      if (event.target.dataset.do === "step") {
        // Along the circle: each pull times the direction to its neighbour.
        const [, strength] = found();
        const turn = strength.map((pull, index) => pull * Math.sin(state.anchors[index].angle - state.query));
        state.query += 0.4 * turn.reduce((sum, part) => sum + part, 0);
      }
      draw();
    });
    form.addEventListener("change", draw);
    tau.addEventListener("input", draw);
    draw();
  };
  document.addEventListener("DOMContentLoaded", () => {
    const root = document.getElementById("gradient-playground");
    if (root) start(root);
  });
})();
