// SPDX-License-Identifier: Apache-2.0
// tessera doctor: reports what each rank of a run was doing when it broke, and what is wrong with
// the rollouts of a run of the task rl.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/config/json.h"
#include "tessera/engine/rl/diagnosis.h"
#include "tessera/report/flight_report.h"

namespace tessera::cli {
namespace {

int doctor(const std::vector<std::string>& line) {
  std::string run;
  Common common;
  Arguments arguments(
      "doctor",
      "Shows what each rank of a broken run was doing, and which rank missed which "
      "collective. The ranks write their records into RUN/logs when the run breaks. For rl "
      "runs it also shows the reward history, recent alarms and their remedies.",
      {"tessera doctor runs/my"});
  arguments.positional("RUN", &run, "Run folder");
  arguments.common(common, /*has_json=*/true);
  if (!arguments.parse(line)) return kExitOk;
  const std::filesystem::path folder = std::filesystem::path(run) / "logs";
  TESSERA_REQUIRE(std::filesystem::is_directory(folder),
                  Config,
                  folder.string() + " does not exist",
                  "name the folder of a run");
  const auto logs = report::read_flight_logs(folder);
  std::vector<std::string> lines = report::explain_flight(logs);
  const bool broken = !lines.empty();
  const std::vector<std::string> rollouts = engine::rl::diagnosis_of(run);
  lines.insert(lines.end(), rollouts.begin(), rollouts.end());
  if (common.json) {
    json::Value out = json::Value::array();
    for (const std::string& one : lines)
      out.items().push_back(json::Value::string(one));
    std::puts(json::Value::object({{"lines", std::move(out)}}).dump().c_str());
  } else {
    if (!broken)
      std::puts("no rank has left a record: the run has not broken, or had a single rank");
    for (const std::string& one : lines)
      std::puts(one.c_str());
  }
  return kExitOk;
}

TESSERA_COMMAND("doctor", "tell why a run broke, or what is wrong with its rollouts", doctor);

}  // namespace
}  // namespace tessera::cli
