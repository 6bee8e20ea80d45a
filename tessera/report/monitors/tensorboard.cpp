// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/monitors/tensorboard.h"

#include <array>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "tessera/report/monitors/monitor.h"

namespace tessera::report {
namespace {

constexpr std::uint32_t kMaskDelta = 0xa282ead8;

// Fields of Event.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
// Fields of Summary.Value.
constexpr int kTag = 1, kSimpleValue = 2, kHisto = 5, kTensor = 8, kMetadata = 9;

std::array<std::uint32_t, 256> make_crc32c_table() {
  constexpr std::uint32_t kReversed = 0x82f63b78;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit)
      value = (value >> 1) ^ ((value & 1) != 0 ? kReversed : 0);
    table[i] = value;
  }
  return table;
}

WireMessage value_of(const std::string& tag) {
  WireMessage value;
  value.bytes(kTag, tag);
  return value;
}

WireMessage summary_of(const WireMessage& value) {
  WireMessage summary;
  summary.message(1, value);
  return summary;
}

/// SummaryMetadata of a plugin.
WireMessage metadata(const std::string& plugin, const std::string& content) {
  WireMessage data;
  data.bytes(1, plugin);
  if (!content.empty()) data.bytes(2, content);
  WireMessage out;
  out.message(1, data);
  return out;
}

/// google.protobuf.Value.
WireMessage any_value(const json::Value& value) {
  WireMessage out;
  if (value.is_number()) {
    out.real(2, value.as_double());
  } else if (value.is_bool()) {
    out.integer(4, value.as_bool() ? 1 : 0);
  } else {
    out.bytes(3, value.as_string());
  }
  return out;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = make_crc32c_table();
  std::uint32_t crc = 0xffffffff;
  for (const char c : bytes)
    crc = table[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + kMaskDelta;
}

std::string tfrecord(std::string_view bytes) {
  std::string out;
  append_le64(out, bytes.size());
  append_le32(out, masked_crc32c(out));
  out += bytes;
  append_le32(out, masked_crc32c(bytes));
  return out;
}

EventFile::EventFile(const std::filesystem::path& path, double time) : file_(path) {
  WireMessage first;
  first.real(kWallTime, time).bytes(kFileVersion, "brain.Event:2");
  file_.append(tfrecord(first.str()));
}

void EventFile::event(double time, std::int64_t step, int field, const WireMessage& what) {
  WireMessage out;
  out.real(kWallTime, time);
  if (step != 0) out.integer(kStep, step);
  file_.append(tfrecord(out.message(field, what).str()));
}

void EventFile::restart(double time, std::int64_t step) {
  constexpr int kStart = 1;
  WireMessage log;
  event(time, step, kSessionLog, log.integer(1, kStart));
}

void EventFile::scalars(double time, std::int64_t step, std::span<const Scalar> values) {
  WireMessage summary;
  for (const Scalar& scalar : values) {
    WireMessage value = value_of(scalar.tag);
    summary.message(1, value.single(kSimpleValue, static_cast<float>(scalar.value)));
  }
  event(time, step, kSummary, summary);
}

void EventFile::histogram(double time,
                          std::int64_t step,
                          const std::string& tag,
                          const Histogram& values) {
  WireMessage histo;
  histo.real(1, values.min)
      .real(2, values.max)
      .real(3, values.num)
      .real(4, values.sum)
      .real(5, values.sum_squares)
      .reals(6, values.limits)
      .reals(7, values.counts);
  WireMessage value = value_of(tag);
  event(time, step, kSummary, summary_of(value.message(kHisto, histo)));
}

void EventFile::text(double time,
                     std::int64_t step,
                     const std::string& tag,
                     std::string_view text) {
  constexpr int kString = 7;  // of tensorflow.DataType
  WireMessage size, shape, tensor;
  shape.message(2, size.integer(1, 1));
  tensor.integer(1, kString).message(2, shape).bytes(8, text);
  WireMessage value = value_of(tag + "/text_summary");
  value.message(kTensor, tensor).message(kMetadata, metadata("text", ""));
  event(time, step, kSummary, summary_of(value));
}

void EventFile::hyperparameters(double time,
                                const std::string& group,
                                std::span<const Hyperparameter> all) {
  WireMessage start;
  for (const Hyperparameter& one : all) {
    WireMessage entry;
    start.message(1, entry.bytes(1, one.name).message(2, any_value(one.value)));
  }
  start.bytes(4, group).real(5, time);
  WireMessage data;
  data.message(3, start);
  WireMessage value = value_of("_hparams_/session_start_info");
  event(time, 0, kSummary, summary_of(value.message(kMetadata, metadata("hparams", data.str()))));
}

void EventFile::end(double time, bool success) {
  constexpr int kSuccess = 1, kFailure = 2;  // of tensorboard.hparams.Status
  WireMessage end, data;
  data.message(4, end.integer(1, success ? kSuccess : kFailure).real(2, time));
  WireMessage value = value_of("_hparams_/session_end_info");
  event(time, 0, kSummary, summary_of(value.message(kMetadata, metadata("hparams", data.str()))));
}

std::string event_file_name(double time, std::string_view host, int process, int number) {
  return fmt::format("events.out.tfevents.{:010d}.{}.{}.{}",
                     static_cast<std::int64_t>(time),
                     file_name_of(host),
                     process,
                     number);
}

void TensorboardOptions::describe(config::Fields& f) {
  f.field("enabled", enabled, {.text = "Write event files for TensorBoard."});
  describe_folder(f, output_path, job_name, "event files", "tensorboard");
  describe_tags(f, tags);
  f.field("histograms",
          histograms,
          {.text = "Write histograms of the weights and gradients of every trained parameter after "
                   "this number of steps; 0 writes none.",
           .unit = "steps",
           .min = 0,
           .max = 1e12});
}

namespace {

const bool kTensorboardIsASection =
    config::add_section<TensorboardOptions>("tensorboard", 10, "Event files for TensorBoard.");

class TensorboardMonitor final : public Monitor {
 public:
  explicit TensorboardMonitor(const MonitorContext& context)
      : style_(context.sections.get<TensorboardOptions>().tags),
        file_(monitor_folder(context,
                             context.sections.get<TensorboardOptions>().output_path,
                             context.sections.get<TensorboardOptions>().job_name,
                             "tensorboard") /
                  event_file_name(context.time, context.host, ::getpid(), 0),
              context.time) {
    if (context.step > 0) {
      const Reading next{.step = context.step + 1, .samples = context.samples + 1};
      file_.restart(context.time, axis_of(next, style_));
    }
    file_.hyperparameters(context.time,
                          context.run_dir.filename().string(),
                          report::hyperparameters(context.resolved));
  }

  void write(const Reading& reading) override {
    const std::vector<Scalar> values = scalars_of(reading, style_);
    file_.scalars(reading.time, axis_of(reading, style_), values);
  }
  void text(const Reading& reading, std::string_view text) override {
    // TensorBoard shows Markdown: four spaces preserve the lines.
    std::string shown = "    ";
    for (const char c : text) {
      shown += c;
      if (c == '\n') shown += "    ";
    }
    file_.text(reading.time, axis_of(reading, style_), "sample", shown);
  }
  void histograms(const Reading& reading, std::span<const NamedHistogram> all) override {
    for (const NamedHistogram& one : all)
      file_.histogram(reading.time, axis_of(reading, style_), one.name, one.histogram);
  }
  void finish(double time, bool success) override { file_.end(time, success); }
  [[nodiscard]] std::string place() const override { return file_.path().parent_path().string(); }

 private:
  TagStyle style_;
  EventFile file_;
};

const bool kTensorboardIsThere = monitors().add(
    "tensorboard",
    {[](const config::Sections& all) { return all.get<TensorboardOptions>().enabled; },
     [](const MonitorContext& context) -> std::unique_ptr<Monitor> {
       return std::make_unique<TensorboardMonitor>(context);
     },
     [](const config::Sections& all) {
       const auto& options = all.get<TensorboardOptions>();
       return output_folder(options.output_path, options.job_name);
     }});

}  // namespace
}  // namespace tessera::report
