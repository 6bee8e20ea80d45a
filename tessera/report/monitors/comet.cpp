// SPDX-License-Identifier: Apache-2.0
// Offline experiments of Comet: messages.json grows while the training runs, and the archive that
// `comet upload` accepts is made at the end. Source: comet_ml's offline_utils.py and messages.py.
#include <map>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/files.h"
#include "tessera/report/appended_file.h"
#include "tessera/report/monitors/monitor.h"
#include "tessera/report/monitors/scalars.h"
#include "tessera/report/monitors/stored_zip.h"

namespace tessera::report {
namespace {

/// The use that the upload of an offline run makes of its experiment key.
enum class CometMode : std::uint8_t { Create, Get, GetOrCreate };
inline constexpr auto kCometModes =
    std::to_array<config::Named<CometMode>>({{CometMode::Create, "create"},
                                             {CometMode::Get, "get"},
                                             {CometMode::GetOrCreate, "get_or_create"}});

struct CometOptions {
  bool enabled = false;
  std::int64_t samples_log_interval = 100;
  std::string project, workspace, experiment_name, experiment_key;
  CometMode mode = CometMode::Create;
  TagStyle tags = TagStyle::DeepSpeed;
  void describe(config::Fields& fields);
  void check(config::Problems& problems, const config::Origins& origins) const;
};

constexpr double kMostSamples = 1e15;

void CometOptions::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "Write an offline experiment for Comet in the folder comet of the run folder; "
                   "comet upload uploads it."});
  f.field("samples_log_interval",
          samples_log_interval,
          {.text = "Write a metric once in this number of samples.",
           .unit = "samples",
           .min = 1,
           .max = kMostSamples});
  f.field("project", project, {.text = "Project of the experiment.", .default_text = "none"});
  f.field("workspace", workspace, {.text = "Workspace of the project.", .default_text = "none"});
  f.field("experiment_name",
          experiment_name,
          {.text = "Displayed name.", .default_text = "name of the run folder"});
  f.field("experiment_key",
          experiment_key,
          {.text = "Key of the experiment: 32 to 50 letters and digits.",
           .default_text = "a new one for each start"});
  f.choice("mode",
           mode,
           kCometModes,
           {.text = "What the upload does with experiment_key: continue that experiment (get), "
                    "create one (create), or whichever is possible (get_or_create)."});
  describe_tags(f, tags);
}

void CometOptions::check(config::Problems& problems, const config::Origins& origins) const {
  const std::string& key = experiment_key;
  const bool fits =
      key.size() >= 32 && key.size() <= 50 &&
      std::all_of(key.begin(), key.end(), [](unsigned char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      });
  if (enabled && !key.empty() && !fits) {
    problems.add(origins.place("comet.experiment_key"),
                 "comet.experiment_key",
                 "expected 32 to 50 letters and digits",
                 "remove it: each start then has a key of its own");
  }
}

const bool kCometIsASection =
    config::add_section<CometOptions>("comet", 40, "Offline experiments for Comet.");

json::Value milliseconds(double seconds) {
  return json::Value::integer(static_cast<std::int64_t>(seconds * 1e3));
}

json::Value text_or_null(const std::string& text) {
  return text.empty() ? json::Value() : json::Value::string(text);
}

/// Returns the given key, or a new one of 32 digits.
std::string experiment_key(const MonitorContext& context) {
  const auto& given = context.sections.get<CometOptions>().experiment_key;
  if (!given.empty()) return given;
  const auto half = [&](int part) {
    const std::string seed = fmt::format("{} {} {} {:.6f} {}",
                                         part,
                                         context.run_dir.string(),
                                         context.host,
                                         context.time,
                                         ::getpid());
    return files::hex64(files::xxh3(std::as_bytes(std::span(seed))));
  };
  return half(0) + half(1);
}

/// An earlier start may have used the given key; its upload is a different one, so a free folder is
/// returned.
std::filesystem::path free_folder(const std::filesystem::path& wanted) {
  std::filesystem::path out = wanted;
  std::error_code ignored;
  for (int i = 1; std::filesystem::exists(out, ignored); ++i)
    out = fmt::format("{}-{}", wanted.string(), i);
  return out;
}

class CometMonitor final : public Monitor {
 public:
  CometMonitor(const MonitorContext& context, std::string key)
      : options_(context.sections.get<CometOptions>()),
        key_(std::move(key)),
        folder_(free_folder(context.run_dir / "comet" / key_)),
        start_(context.time),
        messages_(folder_ / "messages.json") {
    const std::string name = options_.experiment_name.empty() ? context.run_dir.filename().string()
                                                              : options_.experiment_name;
    const json::Value named = json::Value::object(
        {{"key", json::Value::string("Name")}, {"value", json::Value::string(name)}});
    message("log_other", named, context.time, /*timed=*/false);
    for (const Hyperparameter& one : hyperparameters(context.resolved)) {
      message(
          "parameter_msg",
          json::Value::object({{"param",
                                json::Value::object({{"paramName", json::Value::string(one.name)},
                                                     {"paramValue", one.value},
                                                     {"step", json::Value()},
                                                     {"source", json::Value::string("manual")}})}}),
          context.time);
    }
    describe(context.time);
  }

  void write(const Reading& reading) override {
    const std::int64_t at = axis_of(reading, options_.tags);
    for (const Scalar& scalar : scalars_of(reading, options_.tags)) {
      if (!is_due(scalar.tag, reading.samples)) continue;
      message("metric_msg",
              json::Value::object(
                  {{"metric",
                    json::Value::object({{"metricName", json::Value::string(scalar.tag)},
                                         {"metricValue", json::Value::number(scalar.value)},
                                         {"step", json::Value::integer(at)},
                                         {"epoch", json::Value()}})}}),
              reading.time);
    }
  }

  void finish(double time, bool /*success*/) override {
    messages_.flush();
    describe(time);
    write_stored_zip(
        folder_.string() + ".zip",
        {{"experiment.json", folder_ / "experiment.json"}, {"messages.json", messages_.path()}});
  }
  [[nodiscard]] std::string place() const override { return folder_.string(); }

 private:
  void message(const std::string& type, json::Value payload, double time, bool timed = true) {
    payload["message_id"] = json::Value::integer(++number_);
    if (timed) payload["local_timestamp"] = milliseconds(time);
    json::Value out;
    out["type"] = json::Value::string(type);
    out["payload"] = std::move(payload);
    messages_.append_soon(out.dump() + '\n');
  }

  /// DeepSpeed writes a metric once per number of samples.
  bool is_due(const std::string& tag, std::int64_t samples) {
    const auto [it, fresh] = last_.emplace(tag, samples);
    if (!fresh && samples - it->second < options_.samples_log_interval) return false;
    it->second = samples;
    return true;
  }

  /// experiment.json.
  void describe(double time) const {
    json::Value out;
    out["offline_id"] = json::Value::string(key_);
    out["project_name"] = text_or_null(options_.project);
    out["start_time"] = milliseconds(start_);
    out["stop_time"] = milliseconds(time);
    out["tags"] = json::Value::array();
    out["workspace"] = text_or_null(options_.workspace);
    out["resume_strategy"] = json::Value::string(config::name_of(kCometModes, options_.mode));
    out["customer_error_reported"] = json::Value::boolean(false);
    out["customer_error_message"] = json::Value();
    out["user_provided_experiment_key"] = json::Value::boolean(!options_.experiment_key.empty());
    out["comet_start_sourced"] = json::Value::boolean(false);
    files::write_atomic(folder_ / "experiment.json", out.dump());
  }

  CometOptions options_;
  std::string key_;
  std::filesystem::path folder_;
  double start_;
  AppendedFile messages_;
  std::int64_t number_ = 0;
  std::map<std::string, std::int64_t> last_;
};

const bool kCometIsThere =
    monitors().add("comet",
                   {[](const config::Sections& all) { return all.get<CometOptions>().enabled; },
                    [](const MonitorContext& context) -> std::unique_ptr<Monitor> {
                      return std::make_unique<CometMonitor>(context, experiment_key(context));
                    }});

}  // namespace
}  // namespace tessera::report
