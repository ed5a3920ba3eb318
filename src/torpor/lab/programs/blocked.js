// blocked.js repeat|sleep [SECONDS]: repeat each line of input, or sleep; both wait in epoll_wait.
const now = () => Number(process.hrtime.bigint()) / 1e9;
const [what, seconds] = process.argv.slice(1);
if (what === "sleep") {
  const began = now();
  setTimeout(() => console.log(began, now()), 1000 * Number(seconds));
} else {
  process.stdin.on("data", (data) => process.stdout.write(data));
}
