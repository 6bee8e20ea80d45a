// SPDX-License-Identifier: Apache-2.0
// tessera doctor: reports what each rank of a run was doing when it broke, and what is wrong with
// the rollouts of a run of the task rl.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/config/json.h"
#include "tessera/report/expert_loads.h"
#include "tessera/report/flight_report.h"
#include "tessera/report/run_status.h"
#include "tessera/rlhf/diagnosis.h"

namespace tessera::cli {
namespace {

/// How the run ended, and why, as its folder says.
std::vector<std::string> state_of(const report::RunStatus& status) {
  if (status.state.empty()) return {};
  std::string ended = status.state == "running" ? "the run is running" : "the run " + status.state;
  if (status.state == "stopped" || status.state == "killed") ended = "the run was " + status.state;
  if (status.exit_code) ended += fmt::format(", exit code {}", *status.exit_code);
  const std::string words = report::words_of(status);
  return {words.empty() ? ended : ended + ": " + words};
}

/// A damaged file is reported, so that the other findings are shown too.
std::vector<std::string> findings_about_experts(const std::string& run) {
  try {
    return report::expert_findings(report::read_expert_loads(run));
  } catch (const Error& error) {
    return {std::string("the loads of experts are not known: ") + error.what()};
  }
}

int doctor(const std::vector<std::string>& line) {
  std::string run;
  Common common;
  Arguments arguments(
      "doctor",
      "Shows how a run ended and why, what each rank of a broken run was doing and, unless the "
      "cause is known, which rank missed which collective. The ranks write their records into "
      "RUN/logs when the run breaks. For rl runs it also shows the reward history, recent "
      "alarms and their remedies; for models with experts, those without tokens and those with too "
      "many.",
      {"tessera doctor runs/my"});
  arguments.positional("RUN", &run, "Run folder");
  arguments.common(common, /*has_json=*/true);
  if (!arguments.parse(line)) return kExitOk;
  const std::filesystem::path folder = std::filesystem::path(run) / "logs";
  TESSERA_REQUIRE(std::filesystem::is_directory(folder),
                  Config,
                  folder.string() + " does not exist",
                  "name the folder of a run");
  const report::RunStatus status = report::run_status(run);
  std::vector<std::string> lines = state_of(status);
  const std::string& cause = status.state == "failed" ? status.message : std::string();
  const std::vector<std::string> ranks =
      report::explain_flight(report::read_flight_logs(folder), cause);
  lines.insert(lines.end(), ranks.begin(), ranks.end());
  if (ranks.empty()) lines.emplace_back("no rank has left a record");
  const std::vector<std::string> rollouts = rlhf::diagnosis_of(run);
  lines.insert(lines.end(), rollouts.begin(), rollouts.end());
  const std::vector<std::string> experts = findings_about_experts(run);
  lines.insert(lines.end(), experts.begin(), experts.end());
  if (common.json) {
    json::Value out = json::Value::array();
    for (const std::string& one : lines)
      out.items().push_back(json::Value::string(one));
    std::puts(json::Value::object({{"lines", std::move(out)}}).dump().c_str());
  } else {
    for (const std::string& one : lines)
      std::puts(text::printable(one).c_str());
  }
  return kExitOk;
}

TESSERA_COMMAND("doctor",
                "say why a run broke, or what is wrong with its rollouts or experts",
                doctor);

}  // namespace
}  // namespace tessera::cli
