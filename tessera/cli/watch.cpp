// SPDX-License-Identifier: Apache-2.0
// tessera watch: shows runs in a browser on this host, or as text.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/loopback.h"
#include "tessera/base/quiet_thread.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/report/run_board.h"
#include "tessera/report/run_view.h"
#include "tessera/report/watch_page.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPoints = 1500;  // points of a curve: more would not be visible
constexpr std::size_t kMostRuns = 64;

struct WatchFlags {
  std::vector<std::string> runs;
  std::int64_t port = 0;
  bool text = false, once = false;
  Common common;
};

bool parse(WatchFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "watch",
      "Shows runs on a page that only this host can open: curves of every metric, "
      "samples, differences of configurations, checkpoints and warnings. With --text "
      "on the terminal.",
      {"tessera watch                     every run in runs/",
       "tessera watch runs/a runs/b       over each other",
       "tessera watch runs/a --text       a board on the terminal",
       "tessera watch runs/a --text --once"});
  arguments.positional("RUNS", &words.runs, "Run folders [those in runs/]", /*required=*/false);
  arguments.option("--port", &words.port, "Port of the page [a free one]");
  arguments.flag("--text", words.text, "Show a board on the terminal instead");
  arguments.flag("--once", words.once, "With --text: show it once and end");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

std::vector<report::RunView> open_runs(std::vector<std::string> names) {
  if (names.empty()) {
    std::error_code ignored;
    for (fs::directory_iterator at("runs", ignored), end; !ignored && at != end;
         at.increment(ignored)) {
      if (report::RunView::is_run(at->path())) names.push_back(at->path().string());
    }
    std::sort(names.begin(), names.end());
    TESSERA_REQUIRE(!names.empty(),
                    Io,
                    "there is no run in the folder runs",
                    "name run folders: tessera watch my_run");
  }
  TESSERA_REQUIRE(names.size() <= kMostRuns,
                  Config,
                  fmt::format("{} runs: at most {} are shown", names.size(), kMostRuns),
                  "name some of them: tessera watch runs/a runs/b");
  std::vector<report::RunView> out;
  for (const std::string& name : names) {
    out.emplace_back(name);
    out.back().refresh();
  }
  return out;
}

json::Value details_of(std::vector<report::RunView>& runs) {
  json::Value out = json::Value::array();
  for (report::RunView& run : runs) {
    run.refresh();
    out.push_back(run.details(kPoints));
  }
  return out;
}

/// Other users of this host must not read the page, so its address has 128 random bits.
std::string make_token() {
  unsigned char bytes[16];
  TESSERA_REQUIRE(::getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes),
                  Environment,
                  "the system gives no random numbers",
                  "");
  std::string out;
  for (const unsigned char byte : bytes)
    out += fmt::format("{:02x}", byte);
  return out;
}

bool same_token(const std::string* given, const std::string& token) {
  if (given == nullptr || given->size() != token.size()) return false;
  unsigned different = 0;
  for (std::size_t i = 0; i < token.size(); ++i)
    different |= static_cast<unsigned char>((*given)[i] ^ token[i]);
  return different == 0;
}

/// Waits for Ctrl-C or SIGTERM for at most `seconds`; the caller blocks signals with a NoSignals.
bool stopped_within(int seconds) {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    sigaddset(&ends, signal);
  const timespec time{.tv_sec = seconds, .tv_nsec = 0};
  return ::sigtimedwait(&ends, nullptr, &time) > 0;
}

int serve(std::vector<report::RunView> runs, const WatchFlags& words) {
  const NoSignals blocked;
  const std::string token = make_token();
  const loopback::Server server(
      fmt::format("127.0.0.1:{}", words.port), [&](const loopback::Request& request) {
        if (!same_token(request.find("token"), token)) {
          return loopback::Response{403,
                                    "text/plain; charset=utf-8",
                                    "open the address that tessera watch has printed\n"};
        }
        if (request.path == "/")
          return loopback::Response{200, "text/html; charset=utf-8", report::watch_page({})};
        if (request.path == "/api/runs")
          return loopback::Response{200, "application/json", details_of(runs).dump()};
        return loopback::Response{404, "text/plain; charset=utf-8", "no such page\n"};
      });
  std::printf("http://%s/?token=%s\n", server.address().c_str(), token.c_str());
  if (!words.common.quiet)
    std::printf("%zu run%s; Ctrl-C ends this\n", runs.size(), runs.size() == 1 ? "" : "s");
  std::fflush(stdout);
  while (!stopped_within(3600)) {
  }
  return kExitOk;
}

int show_board(std::vector<report::RunView> runs, bool once) {
  const NoSignals blocked;
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  do {
    winsize size{};
    const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    for (report::RunView& run : runs)
      run.refresh();
    std::string page = terminal && !once ? "\x1b[H\x1b[2J" : "";
    for (const std::string& line : report::run_board(runs, known ? size.ws_col : 100))
      page += line + "\n";
    std::fputs(page.c_str(), stdout);
    std::fflush(stdout);
  } while (!once && terminal && !stopped_within(2));
  return kExitOk;
}

int watch(const std::vector<std::string>& line) {
  WatchFlags words;
  if (!parse(words, line)) return kExitOk;
  TESSERA_REQUIRE(words.port >= 0 && words.port <= 65535,
                  Config,
                  fmt::format("--port {}: expected 0 to 65535", words.port),
                  "");
  TESSERA_REQUIRE(words.text || !words.once,
                  Config,
                  "--once has no effect without --text",
                  "add --text, or remove --once");
  TESSERA_REQUIRE(words.port == 0 || !(words.text || words.common.json),
                  Config,
                  "--port has no effect: no page is served with --text or --json",
                  "remove --port");
  std::vector<report::RunView> runs = open_runs(words.runs);
  if (words.common.json) {
    std::printf("%s\n", details_of(runs).dump().c_str());
    return kExitOk;
  }
  if (words.text) return show_board(std::move(runs), words.once);
  return serve(std::move(runs), words);
}

TESSERA_COMMAND("watch", "show runs in a browser or on the terminal while they train", watch);

}  // namespace
}  // namespace tessera::cli
