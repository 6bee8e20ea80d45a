// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/monitors/monitor.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/writable.h"

namespace tessera::report {

Registry<MonitorMaker>& monitors() {
  static Registry<MonitorMaker> registry("monitor");
  return registry;
}

void require_writable_outputs(const config::Sections& sections) {
  for (const std::string& name : monitors().names()) {
    const MonitorMaker& maker = monitors().get(name);
    if (maker.output_folder == nullptr || !maker.enabled(sections)) continue;
    const std::filesystem::path path = maker.output_folder(sections);
    if (path.empty()) continue;
    const std::filesystem::path place = files::nearest_existing(path);
    const auto obstacle = files::obstacle_to_files_in(place);
    TESSERA_REQUIRE(
        !obstacle,
        Io,
        fmt::format("{}.output_path: cannot write to {}: {}: {}",
                    name,
                    path.string(),
                    place.string(),
                    obstacle.value_or("")),
        "choose another folder, or leave the key out, which writes into the run folder");
  }
}

void describe_folder(config::Fields& fields,
                     std::string& output_path,
                     std::optional<std::string>& job_name,
                     const std::string& what,
                     const std::string& folder) {
  fields.field(
      "output_path",
      output_path,
      {.text = "Folder of the " + what + ".", .default_text = folder + " in the run folder"});
  fields.field("job_name",
               job_name,
               {.text = "Folder inside output_path.",
                .default_text = "DeepSpeedJobName if output_path is given, else none"});
}

std::filesystem::path output_folder(const std::string& output_path,
                                    const std::optional<std::string>& job_name) {
  if (output_path.empty()) return {};
  return std::filesystem::path(output_path) / job_name.value_or("DeepSpeedJobName");
}

std::filesystem::path monitor_folder(const MonitorContext& context,
                                     const std::string& output_path,
                                     const std::optional<std::string>& job_name,
                                     const std::string& name) {
  if (output_path.empty()) return context.run_dir / name / job_name.value_or("");
  return output_folder(output_path, job_name);
}

std::string file_name_of(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '-' || c == '_';
    if (!plain) c = '_';
  }
  return out;
}

}  // namespace tessera::report
