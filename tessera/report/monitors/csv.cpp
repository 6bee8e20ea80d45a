// SPDX-License-Identifier: Apache-2.0
// csv_monitor: one csv file for each metric, in DeepSpeed's layout: "Train_Samples_lr.csv" with the
// columns step, which counts samples, and lr. Source: DeepSpeed's csvMonitor.
#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/report/appended_file.h"
#include "tessera/report/monitors/monitor.h"
#include "tessera/report/monitors/scalars.h"

namespace tessera::report {
namespace {

struct CsvMonitorOptions {
  bool enabled = false;
  std::string output_path;  ///< empty: in the run folder
  std::optional<std::string> job_name;
  void describe(config::Fields& fields);
};

void CsvMonitorOptions::describe(config::Fields& f) {
  f.field("enabled", enabled, {.text = "Write a csv file for each metric, as DeepSpeed does."});
  describe_folder(f, output_path, job_name, "csv files", "csv_monitor");
}

const bool kCsvIsASection =
    config::add_section<CsvMonitorOptions>("csv_monitor", 20, "Metrics as csv files.");

constexpr std::string_view kLineEnd = "\r\n";  // as written by Python's csv module

/// Formats a float as Python does: 2.0, 1e-05.
std::string python_float(double value) {
  std::string out = text::number(value);
  if (out.find_first_of(".en") == std::string::npos) out += ".0";
  return out;
}

/// Returns the rows up to `last`, without an incomplete last line: after a resume the file has
/// every step once.
std::string kept_rows(const std::string& content, std::int64_t last) {
  std::string out;
  std::size_t begin = 0;
  for (std::size_t end = content.find('\n'); end != std::string::npos;
       begin = end + 1, end = content.find('\n', begin)) {
    std::int64_t step = 0;
    const char* const first = content.data() + begin;
    const bool row = std::from_chars(first, content.data() + end, step).ec == std::errc();
    if (!row || step <= last) out.append(first, end - begin + 1);
  }
  return out;
}

class CsvMonitor final : public Monitor {
 public:
  explicit CsvMonitor(const MonitorContext& context)
      : folder_(monitor_folder(context,
                               context.sections.get<CsvMonitorOptions>().output_path,
                               context.sections.get<CsvMonitorOptions>().job_name,
                               "csv_monitor")),
        samples_(context.samples) {}

  void write(const Reading& reading) override {
    for (const Scalar& scalar : scalars_of(reading, TagStyle::DeepSpeed)) {
      file_of(scalar.tag)
          .append_soon(
              fmt::format("{},{}{}", reading.samples, python_float(scalar.value), kLineEnd));
    }
  }
  void finish(double /*time*/, bool /*success*/) override {
    for (const auto& [tag, file] : files_)
      file->flush();
  }
  [[nodiscard]] std::string place() const override { return folder_.string(); }

 private:
  AppendedFile& file_of(const std::string& tag) {
    auto& file = files_[tag];
    if (file) return *file;
    const std::filesystem::path path = folder_ / (file_name_of(tag) + ".csv");
    std::error_code ignored;
    const std::string before = std::filesystem::exists(path, ignored) ? files::read(path) : "";
    const std::string kept = kept_rows(before, samples_);
    if (kept != before) files::write_atomic(path, kept);
    file = std::make_unique<AppendedFile>(path);
    if (kept.empty())
      file->append(fmt::format("step,{}{}", tag.substr(tag.rfind('/') + 1), kLineEnd));
    return *file;
  }

  std::filesystem::path folder_;
  std::int64_t samples_;
  std::map<std::string, std::unique_ptr<AppendedFile>> files_;
};

const bool kCsvIsThere = monitors().add(
    "csv_monitor",
    {[](const config::Sections& all) { return all.get<CsvMonitorOptions>().enabled; },
     [](const MonitorContext& context) -> std::unique_ptr<Monitor> {
       return std::make_unique<CsvMonitor>(context);
     },
     [](const config::Sections& all) {
       const auto& options = all.get<CsvMonitorOptions>();
       return output_folder(options.output_path, options.job_name);
     }});

}  // namespace
}  // namespace tessera::report
