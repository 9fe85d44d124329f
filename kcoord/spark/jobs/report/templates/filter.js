(() => {
  const form = document.getElementById("filter"), shown = document.getElementById("shown");
  if (!form) return;
  const rows = [...document.querySelectorAll("tr[data-state]")];
  const apply = () => {
    const words = form.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const name = row.cells[0].textContent.toLowerCase();
      const fits = words.every((word) => name.includes(word))
        && (!form.state.value || row.dataset.state === form.state.value)
        && (!form.lag.checked || row.dataset.lag === "1")
        && (!form.rebalances.checked || row.dataset.rebalances === "1");
      row.hidden = !fits;
      count += fits;
    }
    shown.textContent = `${count} of ${rows.length} shown`;
  };
  const arrive = () => {
    const row = document.getElementById(location.hash.slice(1));
    if (row && row.hidden) { form.reset(); apply(); row.scrollIntoView(); }
  };
  form.addEventListener("input", apply);
  form.addEventListener("reset", () => setTimeout(apply));
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", arrive);
  form.hidden = false;
  apply();
  arrive();
})();
