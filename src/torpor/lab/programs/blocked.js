// blocked.js HOW [SECONDS]: repeat each line of input, waiting for it in epoll_wait; or sleep.
const now = () => Number(process.hrtime.bigint()) / 1e9;
const seconds = process.argv.at(-1);
if (process.argv.includes("sleep")) {
  const began = now();
  setTimeout(() => console.log(began, now()), 1000 * Number(seconds));
} else {
  process.stdin.on("data", (data) => process.stdout.write(data));
}
