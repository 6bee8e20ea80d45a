// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/run_view.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/median.h"
#include "tessera/base/text.h"
#include "tessera/report/expert_loads.h"
#include "tessera/report/run_status.h"

namespace tessera::report {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPiece = std::size_t{4} << 20;
constexpr std::size_t kLongestLine = std::size_t{1} << 20;
constexpr std::size_t kMostFile = std::size_t{64} << 20;  // largest files that are read whole
constexpr std::size_t kMostSamples = 20, kMostEvents = 50, kMostEvals = 5000;

/// A file opened for reading; reads return nothing if it could not be opened.
class Opened {
 public:
  explicit Opened(const fs::path& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {}
  ~Opened() {
    if (fd_ >= 0) ::close(fd_);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  std::size_t read(std::string& into, std::uint64_t at, std::size_t bytes) const {
    into.resize(bytes);
    const ssize_t got = fd_ < 0 ? 0 : ::pread(fd_, into.data(), bytes, static_cast<off_t>(at));
    into.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return into.size();
  }

 private:
  int fd_;
};

std::uint64_t size_of_file(const fs::path& path) {
  std::error_code failure;
  const std::uintmax_t size = fs::file_size(path, failure);
  return failure ? 0 : size;
}

/// Returns the last bytes of a file, from the beginning of a line.
std::string tail_of(const fs::path& path, std::size_t bytes) {
  const std::uint64_t size = size_of_file(path);
  const std::uint64_t from = size > bytes ? size - bytes : 0;
  std::string out;
  Opened(path).read(out, from, static_cast<std::size_t>(size - from));
  if (from > 0) out.erase(0, std::min(out.find('\n'), out.size() - 1) + 1);
  return out;
}

json::Value read_json(const fs::path& path) {
  try {
    if (size_of_file(path) > kMostFile) return {};
    std::error_code ignored;
    return fs::exists(path, ignored) ? json::parse_strict(files::read(path), path.string())
                                     : json::Value();
  } catch (const Error&) {
    return {};  // the file is being replaced, or is damaged
  }
}

std::optional<json::Value> read_line(std::string_view line) {
  try {
    json::Value out = json::parse_strict(line, "metrics.jsonl");
    if (out.is_object()) return out;
  } catch (const Error&) {
    // an incomplete line, or one of another program
  }
  return std::nullopt;
}

const json::Value* find(const json::Value& value, std::string_view key) {
  return value.is_object() ? value.find(key) : nullptr;
}

void copy(json::Value& to, const json::Value& from, const char* key, const char* as = nullptr) {
  const json::Value* const value = find(from, key);
  if (value != nullptr && !value->is_null()) to[as == nullptr ? key : as] = *value;
}

/// Returns {NAME: [values]} for lines; terms of losses are named "terms.NAME".
json::Value columns(const std::vector<json::Value>& lines) {
  constexpr std::size_t kMostColumns = 200;
  std::map<std::string, std::vector<json::Value>> all;
  std::vector<std::string> order;
  const auto put = [&](const std::string& name, const json::Value& value, std::size_t row) {
    auto it = all.find(name);
    if (it == all.end()) {
      if (order.size() >= kMostColumns) return;
      order.push_back(name);
      it = all.emplace(name, std::vector<json::Value>(lines.size())).first;
    }
    it->second[row] = value;
  };
  for (std::size_t i = 0; i < lines.size(); ++i) {
    for (const auto& [key, value] : lines[i].members()) {
      if (value.is_number()) put(key, value, i);
      if (!value.is_object()) continue;
      for (const auto& [term, mean] : value.members()) {
        if (mean.is_number()) put(key + "." + term, mean, i);
      }
    }
  }
  json::Value out = json::Value::object();
  for (const std::string& name : order)
    out[name] = json::Value::array(std::move(all[name]));
  return out;
}

json::Value samples_of(const fs::path& folder) {
  std::vector<json::Value> out;
  for (const std::string& line :
       text::split(tail_of(folder / "samples.jsonl", kLongestLine), '\n')) {
    if (auto sample = line.empty() ? std::nullopt : read_line(line))
      out.push_back(*std::move(sample));
  }
  if (out.size() > kMostSamples)
    out.erase(out.begin(), out.end() - static_cast<std::ptrdiff_t>(kMostSamples));
  return json::Value::array(std::move(out));
}

json::Value checkpoints_of(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator at(folder / "checkpoints", ignored), end; !ignored && at != end;
       at.increment(ignored)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with("step-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  std::vector<json::Value> out;
  for (std::string& name : names)
    out.push_back(json::Value::string(text::replace_invalid_utf8(name)));
  return json::Value::array(std::move(out));
}

/// experts.json of the run, with as many layers and experts as the page draws; null without one.
json::Value experts_of(const fs::path& folder) {
  constexpr std::size_t kLayers = 128, kMostExperts = 512;
  try {
    ExpertLoads loads = read_expert_loads(folder);
    if (loads.layers.empty()) return {};
    if (loads.layers.size() > kLayers) loads.layers.resize(kLayers);
    for (LayerLoads& layer : loads.layers) {
      layer.layer = text::replace_invalid_utf8(layer.layer);
      if (layer.chosen.size() > kMostExperts) layer.chosen.resize(kMostExperts);
    }
    return json_of(loads);
  } catch (const Error&) {
    return {};  // the file is being replaced, or is damaged
  }
}

/// Returns the finite number after `"loss":` near the beginning of a line.
float loss_in(std::string_view line) {
  constexpr std::string_view kKey = "\"loss\":";
  const std::size_t at = line.substr(0, 256).find(kKey);
  double value = std::numeric_limits<double>::quiet_NaN();
  if (at != std::string_view::npos) {
    const char* const first = line.data() + at + kKey.size();
    std::from_chars(first, line.data() + line.size(), value);
  }
  return static_cast<float>(value);
}

}  // namespace

RunView::RunView(fs::path folder) : folder_(std::move(folder)) {
  TESSERA_REQUIRE(is_run(folder_),
                  Io,
                  fmt::format("{} is not the folder of a run: it has neither metrics.jsonl nor "
                              "status.json",
                              folder_.string()),
                  "give the run.dir of a training run, such as runs/my");
}

bool RunView::is_run(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "metrics.jsonl", ignored) ||
         fs::exists(folder / "status.json", ignored);
}

std::string RunView::name() const {
  const fs::path clean = folder_.lexically_normal();
  const fs::path last =
      clean.filename().empty() ? clean.parent_path().filename() : clean.filename();
  return text::replace_invalid_utf8(last.string());
}

void RunView::take(std::string_view line, std::uint64_t begin) {
  if (line.size() < 2 || line.size() > kLongestLine) return;
  // A line of an evaluation begins with its step, followed by "eval_..." or "test_...".
  const std::size_t comma = line.find(',');
  const std::string_view second = comma == std::string_view::npos ? "" : line.substr(comma + 1);
  const bool evaluation = second.starts_with("\"eval_") || second.starts_with("\"test_");
  (evaluation ? eval_ : train_)
      .push_back(
          {begin, evaluation ? 0.0F : loss_in(line), static_cast<std::uint32_t>(line.size())});
}

void RunView::refresh() {
  const fs::path path = folder_ / "metrics.jsonl";
  const std::uint64_t size = size_of_file(path);
  if (size < scanned_) {
    scanned_ = 0;
    torn_.clear();
    train_.clear();
    eval_.clear();
  }
  const Opened file(path);
  std::string piece;
  while (scanned_ < size &&
         file.read(piece, scanned_, std::min<std::uint64_t>(kPiece, size - scanned_)) > 0) {
    std::size_t begin = 0;
    for (std::size_t end = piece.find('\n'); end != std::string::npos;
         begin = end + 1, end = piece.find('\n', begin)) {
      if (torn_.empty()) {
        take(std::string_view(piece).substr(begin, end - begin), scanned_ + begin);
      } else {
        const std::uint64_t from = scanned_ - torn_.size();
        torn_.append(piece, begin, end - begin);
        take(torn_, from);
        torn_.clear();
      }
    }
    torn_.append(piece, begin);
    if (torn_.size() > kLongestLine) torn_.resize(kLongestLine + 1);
    scanned_ += piece.size();
  }
}

std::vector<std::size_t> RunView::chosen(std::size_t points) const {
  std::vector<std::size_t> out;
  const std::size_t n = train_.size();
  const std::size_t parts = std::max<std::size_t>(points / 2, 1);
  for (std::size_t part = 0; part < parts && n > points; ++part) {
    std::size_t low = part * n / parts, high = low;
    const std::size_t end = (part + 1) * n / parts;
    for (std::size_t i = low; i < end; ++i) {
      if (train_[i].loss < train_[low].loss || std::isnan(train_[low].loss)) low = i;
      if (train_[i].loss > train_[high].loss || std::isnan(train_[high].loss)) high = i;
    }
    out.push_back(std::min(low, high));
    if (low != high) out.push_back(std::max(low, high));
  }
  if (n <= points) {
    for (std::size_t i = 0; i < n; ++i)
      out.push_back(i);
  } else if (out.back() != n - 1) {
    out.push_back(n - 1);
  }
  return out;
}

std::vector<json::Value> RunView::parsed(const std::vector<Line>& lines,
                                         const std::vector<std::size_t>& which) const {
  const Opened file(folder_ / "metrics.jsonl");
  std::vector<json::Value> out;
  std::string text;
  for (const std::size_t i : which) {
    file.read(text, lines[i].begin, lines[i].size);
    if (auto line = read_line(text)) out.push_back(*std::move(line));
  }
  return out;
}

std::vector<double> RunView::losses(std::size_t points) const {
  std::vector<double> out;
  const std::size_t n = train_.size(), parts = std::min(points, n);
  for (std::size_t part = 0; part < parts; ++part) {
    double sum = 0;
    std::size_t count = 0;
    for (std::size_t i = part * n / parts; i < (part + 1) * n / parts; ++i) {
      if (!std::isfinite(train_[i].loss)) continue;
      sum += static_cast<double>(train_[i].loss);
      ++count;
    }
    if (count > 0) out.push_back(sum / static_cast<double>(count));
  }
  return out;
}

std::vector<std::string> RunView::events() const {
  std::vector<std::string> out;
  for (const std::string& line :
       text::split(tail_of(folder_ / "logs/rank_00000.log", kLongestLine), '\n')) {
    const bool told =
        line.find("warning") != std::string::npos || line.find("error") != std::string::npos;
    if (told) out.push_back(text::replace_invalid_utf8(line));
  }
  if (out.size() > kMostEvents)
    out.erase(out.begin(), out.end() - static_cast<std::ptrdiff_t>(kMostEvents));
  return out;
}

json::Value RunView::ranks() const {
  constexpr std::size_t kMostRanks = 64;
  json::Value out = read_json(folder_ / "ranks.json");
  const json::Value* const all = find(out, "ranks");
  if (all == nullptr || !all->is_array()) return {};
  const std::size_t count = all->items().size();
  if (count <= kMostRanks) return out;
  out["ranks"].items().resize(kMostRanks);
  out["more_ranks"] = json::Value::integer(static_cast<std::int64_t>(count - kMostRanks));
  return out;
}

double RunView::median_step_s() const {
  constexpr std::size_t kSteps = 50;
  std::vector<std::size_t> last;
  for (std::size_t i = train_.size() - std::min(train_.size(), kSteps); i < train_.size(); ++i)
    last.push_back(i);
  std::vector<double> times;
  for (const json::Value& line : parsed(train_, last)) {
    const json::Value* const ms = find(line, "step_ms");
    if (ms != nullptr && ms->is_number()) times.push_back(ms->as_double() / 1e3);
  }
  return median_of(std::move(times));
}

json::Value RunView::summary() const {
  json::Value out;
  out["name"] = json::Value::string(name());
  const RunStatus status = run_status(folder_);
  if (!status.state.empty()) out["state"] = json::Value::string(status.state);
  if (status.exit_code) out["exit_code"] = json::Value::integer(*status.exit_code);
  out["message"] = json::Value::string(words_of(status));
  const json::Value config = read_json(folder_ / "config.json");
  if (const json::Value* const trainer = find(config, "trainer")) copy(out, *trainer, "max_steps");
  if (!train_.empty()) {
    const std::vector<json::Value> last = parsed(train_, {train_.size() - 1});
    for (const json::Value& line : last) {
      for (const char* key : {"step",
                              "epoch",
                              "loss",
                              "lr",
                              "grad_norm",
                              "tokens",
                              "tokens_per_s",
                              "padding_share",
                              "matrix_share",
                              "step_ms",
                              "data_ms",
                              "forward_ms",
                              "backward_ms",
                              "reduce_ms",
                              "optimizer_ms",
                              "comm_ms",
                              "disk_ms",
                              "disk_read_bytes",
                              "disk_written_bytes",
                              "early_updates",
                              "early_repeats",
                              "mem_peak_bytes",
                              "skipped",
                              "time"})
        copy(out, line, key);
    }
  }
  if (!eval_.empty()) {
    const std::vector<json::Value> last = parsed(eval_, {eval_.size() - 1});
    for (const json::Value& line : last) {
      copy(out, line, "eval_loss");
      copy(out, line, "step", "eval_step");
    }
  }
  const json::Value *const steps = find(out, "max_steps"), *const step = find(out, "step");
  if (status.state == "running" && steps != nullptr && step != nullptr && steps->is_number() &&
      step->is_number()) {
    const double left = std::max(0.0, steps->as_double() - step->as_double());
    if (const double each = median_step_s(); each > 0)
      out["eta_s"] = json::Value::number(left * each);
  }
  return out;
}

json::Value RunView::details(std::size_t points) const {
  json::Value out = summary();
  out["steps_known"] = json::Value::integer(static_cast<std::int64_t>(train_.size()));
  out["train"] = columns(parsed(train_, chosen(points)));
  std::vector<std::size_t> all;
  const std::size_t every = eval_.size() / kMostEvals + 1;
  for (std::size_t i = 0; i < eval_.size(); ++i) {
    if (i % every == 0 || i + 1 == eval_.size()) all.push_back(i);
  }
  out["eval"] = columns(parsed(eval_, all));
  json::Value flat = json::Value::object();
  for (auto& [path, value] : json::leaves(read_json(folder_ / "config.json")))
    flat[path] = std::move(value);
  out["config"] = std::move(flat);
  out["samples"] = samples_of(folder_);
  out["checkpoints"] = checkpoints_of(folder_);
  out["ranks"] = ranks();
  if (json::Value experts = experts_of(folder_); !experts.is_null())
    out["experts"] = std::move(experts);
  std::vector<json::Value> told;
  const std::string words = out.find("message")->as_string();
  for (std::string& line : events())
    told.push_back(json::Value::string(std::move(line)));
  // The page shows the end of the list.
  if (!words.empty()) told.push_back(json::Value::string(text::replace_invalid_utf8(words)));
  out["events"] = json::Value::array(std::move(told));
  return out;
}

}  // namespace tessera::report
