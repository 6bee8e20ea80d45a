// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/monitors/wandb.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <memory>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/report/monitors/monitor.h"

namespace tessera::report {
namespace {

constexpr std::size_t kBlock = 32768, kHead = 7;
enum class Part : unsigned char { Full = 1, First = 2, Middle = 3, Last = 4 };

// Fields of Record.
constexpr int kNumber = 1, kHistory = 2, kSummaryRecord = 3, kRun = 17, kExit = 18, kHeader = 21;
// Fields of the items of histories, summaries and configurations.
constexpr int kNestedKey = 2, kItemKey = 1, kValueJson = 16;

std::uint32_t zlib_crc(std::string_view bytes) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

WireMessage item(const std::string& key, const std::string& json) {
  WireMessage out;
  return out.bytes(kNestedKey, key).bytes(kValueJson, json);
}

std::string json_number(double value) {
  return std::isfinite(value) ? text::number(value) : "\"NaN\"";
}

/// Returns eight letters and digits, as W&B names its runs.
std::string run_id(const MonitorContext& context) {
  const std::string seed = fmt::format(
      "{} {} {:.6f} {}", context.run_dir.string(), context.host, context.time, ::getpid());
  std::uint64_t bits = files::xxh3(std::as_bytes(std::span(seed)));
  std::string out;
  for (int i = 0; i < 8; ++i, bits /= 36)
    out += "abcdefghijklmnopqrstuvwxyz0123456789"[bits % 36];
  return out;
}

/// Returns the path of the offline run:
/// wandb/offline-run-20261126_064758-da695m19/run-da695m19.wandb.
std::filesystem::path run_file(const MonitorContext& context, const std::string& id) {
  const auto seconds = static_cast<std::time_t>(context.time);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char stamp[32];
  const std::size_t size = std::strftime(stamp, sizeof(stamp), "%Y%m%d_%H%M%S", &parts);
  const std::string folder = fmt::format("offline-run-{}-{}", std::string_view(stamp, size), id);
  return context.run_dir / "wandb" / folder / fmt::format("run-{}.wandb", id);
}

}  // namespace

WandbLog::WandbLog(const std::filesystem::path& path) : file_(path) {
  const std::string head("\x3aW&B\xe1\xbe\x00", kHead);
  file_.append(head);
  at_ = head.size();
}

void WandbLog::append(std::string_view record) {
  std::string out;
  bool first = true;
  do {
    std::size_t left = kBlock - at_ % kBlock;
    if (left < kHead) {
      out.append(left, '\0');
      at_ += left;
      left = kBlock;
    }
    const std::string_view piece = record.substr(0, left - kHead);
    record.remove_prefix(piece.size());
    const Part part = first ? (record.empty() ? Part::Full : Part::First)
                            : (record.empty() ? Part::Last : Part::Middle);
    const std::string typed = std::string(1, static_cast<char>(part)) + std::string(piece);
    append_le32(out, zlib_crc(typed));
    out += static_cast<char>(piece.size() & 0xff);
    out += static_cast<char>(piece.size() >> 8);
    out += typed;
    at_ += kHead + piece.size();
    first = false;
  } while (!record.empty());
  file_.append(out);
}

WandbFile::WandbFile(const std::filesystem::path& path,
                     const WandbRun& run,
                     const json::Value& config)
    : log_(path), start_(run.start) {
  WireMessage versions, header;
  header.message(1, versions.bytes(1, "tessera").bytes(2, "0.70.0"));
  record(kHeader, header);
  WireMessage settings, it, time;
  if (config.is_object()) {
    for (const auto& [key, value] : config.members()) {
      WireMessage entry;
      settings.message(1, entry.bytes(kItemKey, key).bytes(kValueJson, value.dump()));
    }
  }
  const double whole = std::floor(run.start);
  time.integer(1, static_cast<std::int64_t>(whole))
      .integer(2, static_cast<std::int64_t>((run.start - whole) * 1e9));
  it.bytes(1, run.id);
  if (!run.team.empty()) it.bytes(2, run.team);
  it.bytes(3, run.project).message(4, settings);
  if (!run.group.empty()) it.bytes(6, run.group);
  it.bytes(8, run.name).bytes(13, run.host).message(17, time);
  record(kRun, it);
}

void WandbFile::record(int field, const WireMessage& what) {
  WireMessage out;
  log_.append(out.integer(kNumber, ++number_).message(field, what).str());
}

void WandbFile::history(double time, std::int64_t step, std::span<const Scalar> values) {
  WireMessage out, number;
  for (const Scalar& scalar : values) {
    out.message(1, item(scalar.tag, json_number(scalar.value)));
    const auto it = std::find_if(newest_.begin(), newest_.end(), [&](const Scalar& other) {
      return other.tag == scalar.tag;
    });
    if (it == newest_.end()) {
      newest_.push_back(scalar);
    } else {
      it->value = scalar.value;
    }
  }
  step_ = std::max(step_, step);
  out.message(1, item("_timestamp", text::number(time)))
      .message(1, item("_runtime", text::number(time - start_)))
      .message(1, item("_step", std::to_string(step)))
      .message(2, number.integer(1, step));
  record(kHistory, out);
}

void WandbFile::end(double time, int exit_code) {
  WireMessage summary, exit;
  for (const Scalar& scalar : newest_)
    summary.message(1, item(scalar.tag, json_number(scalar.value)));
  summary.message(1, item("_runtime", text::number(time - start_)))
      .message(1, item("_step", std::to_string(step_)));
  record(kSummaryRecord, summary);
  if (exit_code != 0) exit.integer(1, exit_code);
  record(kExit, exit.integer(2, static_cast<std::int64_t>(time - start_)));
}

namespace {

struct WandbOptions {
  bool enabled = false;
  std::string project = "deepspeed";
  std::string group, team, name;
  TagStyle tags = TagStyle::DeepSpeed;
  void describe(config::Fields& fields);
};

void WandbOptions::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "Write an offline run for Weights & Biases in the folder wandb of the run "
                   "folder; wandb sync uploads it."});
  f.field("project", project, {.text = "Project of the run."});
  f.field("group", group, {.text = "Group of the run.", .default_text = "none"});
  f.field("team", team, {.text = "Team or user that owns the project.", .default_text = "none"});
  f.field("name", name, {.text = "Displayed name.", .default_text = "name of the run folder"});
  describe_tags(f, tags);
}

const bool kWandbIsASection =
    config::add_section<WandbOptions>("wandb", 30, "Offline runs for Weights & Biases.");

class WandbMonitor final : public Monitor {
 public:
  WandbMonitor(const MonitorContext& context, const WandbOptions& options, const std::string& id)
      : style_(options.tags),
        file_(run_file(context, id),
              {.id = id,
               .project = options.project,
               .group = options.group,
               .team = options.team,
               .name = options.name.empty() ? context.run_dir.filename().string() : options.name,
               .host = context.host,
               .start = context.time},
              context.resolved) {}

  void write(const Reading& reading) override {
    file_.history(reading.time, axis_of(reading, style_), scalars_of(reading, style_));
  }
  void finish(double time, bool success) override { file_.end(time, success ? 0 : 1); }
  [[nodiscard]] std::string place() const override { return file_.path().parent_path().string(); }

 private:
  TagStyle style_;
  WandbFile file_;
};

const bool kWandbIsThere =
    monitors().add("wandb",
                   {[](const config::Sections& all) { return all.get<WandbOptions>().enabled; },
                    [](const MonitorContext& context) -> std::unique_ptr<Monitor> {
                      return std::make_unique<WandbMonitor>(
                          context, context.sections.get<WandbOptions>(), run_id(context));
                    }});

}  // namespace
}  // namespace tessera::report
