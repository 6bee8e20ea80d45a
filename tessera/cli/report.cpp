// SPDX-License-Identifier: Apache-2.0
// tessera report: shows the capabilities of this machine, or the results of a run.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/facts.h"
#include "tessera/report/run_view.h"
#include "tessera/report/watch_page.h"

namespace tessera::cli {

std::string as_table(const Facts& facts) {
  std::size_t width = 0;
  for (const Fact& fact : facts)
    width = std::max(width, fact.label.size());
  std::string out;
  for (const Fact& fact : facts) {
    if (!fact.label.empty()) {
      out += fmt::format("{:<{}}  {}\n", fact.label, width, text::printable(fact.text));
    }
  }
  return out;
}

json::Value as_json(const Facts& facts) {
  json::Value out = json::Value::object();
  for (const Fact& fact : facts)
    out[fact.key] = fact.value;
  return out;
}

namespace {

void write_page(const std::string& run, const std::string& file) {
  constexpr std::size_t kPoints = 3000;
  report::RunView view(run);
  view.refresh();
  files::write_atomic(file, report::watch_page(json::Value::array({view.details(kPoints)})));
}

int report_command(const std::vector<std::string>& line) {
  std::string run, html;
  Common common;
  Arguments arguments(
      "report",
      "Reports the capabilities of this machine; with RUN, the results of that run.",
      {"tessera report",
       "tessera report runs/my",
       "tessera report runs/my --json",
       "tessera report runs/my --html my.html     curves and samples in one file"});
  arguments.positional("RUN", &run, "Run folder", /*required=*/false);
  arguments.option("--html", &html, "Write a self-contained page to this file");
  arguments.common(common, /*has_json=*/true);
  if (!arguments.parse(line)) return kExitOk;
  if (!html.empty()) {
    TESSERA_REQUIRE(
        !run.empty(), Config, "--html: RUN is missing", "tessera report runs/my --html my.html");
    write_page(run, html);
    return kExitOk;
  }
  const Facts facts = run.empty() ? machine_facts() : run_facts(run);
  std::fputs(common.json ? (as_json(facts).dump(2) + "\n").c_str() : as_table(facts).c_str(),
             stdout);
  return kExitOk;
}

TESSERA_COMMAND("report",
                "report the capabilities of this machine, or the results of a run",
                report_command);

}  // namespace
}  // namespace tessera::cli
