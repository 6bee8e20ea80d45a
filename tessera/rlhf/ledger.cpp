// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/ledger.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"

namespace tessera::rlhf {
namespace {

constexpr const char* kCompletion = "completion";
constexpr const char* kWorth = "worth";

template <class T>
json::Value list_of(const std::vector<T>& values) {
  std::vector<json::Value> items;
  items.reserve(values.size());
  for (const T value : values) {
    if constexpr (std::is_floating_point_v<T>) {
      items.push_back(json::Value::number(value));
    } else {
      items.push_back(json::Value::integer(value));
    }
  }
  return json::Value::array(std::move(items));
}

/// A line of the ledger during reading. Throws Error{Format} for missing members.
class Line {
 public:
  Line(json::Value value, std::string place) : value_(std::move(value)), place_(std::move(place)) {}
  [[nodiscard]] const json::Value& at(const char* key) const {
    const json::Value* const found = value_.is_object() ? value_.find(key) : nullptr;
    TESSERA_REQUIRE(found != nullptr,
                    Format,
                    fmt::format("{}: a line of the ledger has no \"{}\"", place_, key),
                    "move the file aside; the run then makes its rollout again");
    return *found;
  }
  [[nodiscard]] const json::Value* find(const char* key) const { return value_.find(key); }
  [[nodiscard]] const json::Value& value() const { return value_; }
  [[nodiscard]] std::int64_t integer(const char* key) const {
    const std::optional<std::int64_t> found = at(key).as_integer();
    TESSERA_REQUIRE(found.has_value(),
                    Format,
                    fmt::format("{}: \"{}\" is not a whole number", place_, key),
                    "move the file aside; the run then makes its rollout again");
    return *found;
  }
  [[nodiscard]] std::vector<double> numbers(const char* key) const {
    std::vector<double> out;
    const json::Value* const found = value_.find(key);
    if (found == nullptr) return out;
    for (const json::Value& item : found->items()) {
      out.push_back(item.is_null() ? std::numeric_limits<double>::quiet_NaN() : item.as_double());
    }
    return out;
  }

 private:
  json::Value value_;
  std::string place_;
};

/// Calls take(line, its end position) for each complete line until take returns false.
void for_each_line(const std::filesystem::path& path,
                   const std::function<bool(const Line& line, std::int64_t end)>& take) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::int64_t end = 0;
  for (std::int64_t number = 1; std::getline(file, text); ++number) {
    if (file.eof()) return;  // incomplete
    const std::string place = fmt::format("{}:{}", path.string(), number);
    end += std::ssize(text) + 1;
    if (!take(Line(json::parse_strict(text, place), place), end)) return;
  }
}

/// Returns where the lines of policies with more than `last_version` updates, or an incomplete
/// line, begin.
std::int64_t whole_size(const std::filesystem::path& path, std::int64_t last_version) {
  std::int64_t size = 0;
  for_each_line(path, [&](const Line& line, std::int64_t end) {
    if (line.integer("version") > last_version) return false;
    size = end;
    return true;
  });
  return size;
}

Completion completion_of(const Line& line) {
  Completion out;
  out.prompt = line.integer("prompt");
  for (const double id : line.numbers("ids")) {
    // Invalid tokens are refused by callers that know the vocabulary.
    const bool fits = id >= 0 && id <= std::numeric_limits<std::int32_t>::max();
    out.ids.push_back(fits ? static_cast<std::int32_t>(id) : -1);
  }
  out.log_probabilities = line.numbers("logps");
  out.entropy = line.at("entropy").as_double();
  out.ended = line.at("ended").as_bool();
  const std::string& seed = line.at("seed").as_string();
  std::from_chars(seed.data(), seed.data() + seed.size(), out.seed, 16);
  if (line.find("round") != nullptr) out.round = line.integer("round");
  if (line.find("policy") != nullptr) out.lag = line.integer("version") - line.integer("policy");
  return out;
}

Worth worth_of(const Line& line, const std::vector<std::string>& names) {
  Worth out;
  const Line rewards(line.at("rewards"), "rewards");
  for (const std::string& name : names) {
    const json::Value& one = rewards.at(name.c_str());
    out.rewards.push_back(one.is_null() ? std::numeric_limits<double>::quiet_NaN()
                                        : one.as_double());
  }
  out.old = line.numbers("old");
  out.reference = line.numbers("reference");
  out.values = line.numbers("values");
  out.advantages = line.numbers("advantages");
  out.returns = line.numbers("returns");
  out.learned = line.at("learned").as_bool();
  if (const json::Value* const next = line.find("kl_coefficient"); next != nullptr)
    out.kl_coefficient = next->as_double();
  return out;
}

}  // namespace

namespace {

/// `old` and `advantages` always exist; the others may be empty.
constexpr std::vector<double> Worth::*kLists[] = {
    &Worth::old, &Worth::advantages, &Worth::reference, &Worth::values, &Worth::returns};

}  // namespace

std::size_t packed_size(std::size_t rewards, std::size_t tokens) {
  return 2 * rewards + 1 + std::size(kLists) * (1 + tokens);
}

void pack(const Worth& worth, std::size_t tokens, std::vector<double>& to) {
  std::size_t at = 0;
  for (const double reward : worth.rewards) {  // a sum with a NaN would be NaN
    to[at++] = std::isnan(reward) ? 1.0 : 0.0;
    to[at++] = std::isnan(reward) ? 0.0 : reward;
  }
  to[at++] = worth.learned ? 1.0 : 0.0;
  for (const auto list : kLists) {
    const std::vector<double>& values = worth.*list;
    TESSERA_REQUIRE(
        values.empty() || values.size() == tokens,
        Format,
        fmt::format(
            "the ledger has {} numbers for the {} tokens of a completion", values.size(), tokens),
        "move the file aside; the run then makes its rollout again");
    to[at++] = values.empty() ? 0.0 : 1.0;
    std::ranges::copy(values, to.begin() + static_cast<std::ptrdiff_t>(at));
    at += tokens;
  }
}

Worth unpacked(const std::vector<double>& from, std::size_t rewards, std::size_t tokens) {
  Worth out;
  std::size_t at = 0;
  for (std::size_t f = 0; f < rewards; ++f, at += 2)
    out.rewards.push_back(from[at] > 0 ? std::numeric_limits<double>::quiet_NaN() : from[at + 1]);
  out.learned = from[at++] > 0;
  for (const auto list : kLists) {
    const bool there = from[at++] > 0;
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(at);
    if (there) (out.*list).assign(begin, begin + static_cast<std::ptrdiff_t>(tokens));
    at += tokens;
  }
  return out;
}

json::Value to_json(std::int64_t version,
                    std::int64_t number,
                    std::int64_t sample,
                    std::span<const std::int32_t> prompt,
                    const Completion& completion,
                    const std::string& text) {
  json::Value out = json::Value::object(
      {{"kind", json::Value::string(kCompletion)},
       {"version", json::Value::integer(version)},
       {"number", json::Value::integer(number)},
       {"prompt", json::Value::integer(completion.prompt)},
       {"sample", json::Value::integer(sample)},
       {"seed", json::Value::string(fmt::format("{:016x}", completion.seed))},
       {"prompt_ids", list_of(std::vector<std::int32_t>(prompt.begin(), prompt.end()))},
       {"ids", list_of(completion.ids)},
       {"logps", list_of(completion.log_probabilities)},
       {"entropy", json::Value::number(completion.entropy)},
       {"ended", json::Value::boolean(completion.ended)},
       {"text", json::Value::string(text::replace_invalid_utf8(text))}});
  if (completion.round > 0) out["round"] = json::Value::integer(completion.round);
  if (completion.lag > 0) out["policy"] = json::Value::integer(version - completion.lag);
  return out;
}

json::Value to_json(std::int64_t version,
                    std::int64_t number,
                    const Worth& worth,
                    const std::vector<std::string>& names) {
  json::Value rewards = json::Value::object();
  for (std::size_t i = 0; i < names.size(); ++i)
    rewards[names[i]] = json::Value::number(worth.rewards.at(i));
  json::Value out = json::Value::object({{"kind", json::Value::string(kWorth)},
                                         {"version", json::Value::integer(version)},
                                         {"number", json::Value::integer(number)},
                                         {"rewards", std::move(rewards)},
                                         {"learned", json::Value::boolean(worth.learned)},
                                         {"old", list_of(worth.old)},
                                         {"advantages", list_of(worth.advantages)}});
  if (!worth.reference.empty()) out["reference"] = list_of(worth.reference);
  if (!worth.values.empty()) out["values"] = list_of(worth.values);
  if (!worth.returns.empty()) out["returns"] = list_of(worth.returns);
  if (worth.kl_coefficient) out["kl_coefficient"] = json::Value::number(*worth.kl_coefficient);
  return out;
}

Ledger::Ledger(std::filesystem::path path, std::int64_t last_version) : path_(std::move(path)) {
  const std::int64_t size = std::filesystem::exists(path_) ? whole_size(path_, last_version) : 0;
  fd_ = files::open_own(path_, O_WRONLY | O_APPEND | O_CREAT, 0644);
  TESSERA_REQUIRE(::ftruncate(fd_, size) == 0,
                  Io,
                  fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)),
                  "choose a writable run.dir");
}

Ledger::~Ledger() {
  if (fd_ >= 0) ::close(fd_);
}

void Ledger::append(const std::vector<json::Value>& lines) {
  std::string text;
  for (const json::Value& line : lines)
    text += line.dump() + "\n";
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(fd_, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    TESSERA_REQUIRE(written > 0,
                    Io,
                    fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)),
                    "free disk space");
    at += static_cast<std::size_t>(written);
  }
}

void copy_rollouts(const std::filesystem::path& from,
                   const std::filesystem::path& to,
                   std::int64_t first,
                   std::int64_t last) {
  if (!std::filesystem::exists(from)) return;
  Ledger out(to, last);
  for_each_line(from, [&](const Line& line, std::int64_t /*end*/) {
    const std::int64_t version = line.integer("version");
    if (version >= first && version <= last) out.append({line.value()});
    return version <= last;
  });
}

std::optional<KeptRollout> read_rollout(const std::filesystem::path& path,
                                        std::int64_t last_version,
                                        const std::vector<std::string>& reward_names) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  KeptRollout out;
  for_each_line(path, [&](const Line& line, std::int64_t /*end*/) {
    const std::int64_t version = line.integer("version");
    if (version > last_version) return false;
    if (version != out.version) {
      out.version = version;
      out.completions.clear();
      out.worths.clear();
    }
    const std::int64_t number = line.integer("number");
    if (line.at("kind").as_string() == kCompletion) {
      out.completions[number] = completion_of(line);
    } else {
      Worth& worth = out.worths[number] = worth_of(line, reward_names);
      if (worth.kl_coefficient) out.kl_coefficient = worth.kl_coefficient;
    }
    return true;
  });
  if (out.version < 0) return std::nullopt;
  return out;
}

}  // namespace tessera::rlhf
