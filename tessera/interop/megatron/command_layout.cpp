// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/megatron/command_layout.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::interop::megatron {
namespace {

/// Longer words than any model needs are not written out.
constexpr std::size_t kLongest = 100'000;

/// Reads a layout and writes out what it repeats.
class LayoutWord {
 public:
  explicit LayoutWord(std::string_view word) : word_(word) {}

  /// Absent: it is not such a word.
  std::optional<std::string> written_out() {
    std::optional<std::string> out = sequence(/*inside=*/false);
    if (at_ != word_.size()) return std::nullopt;
    return out;
  }

 private:
  std::optional<std::string> sequence(bool inside) {
    std::string out;
    while (at_ < word_.size() && word_[at_] != ')') {
      std::string part;
      if (word_[at_] == '(') {
        if (inside) return std::nullopt;  // Megatron-LM has no brackets in brackets
        ++at_;
        const std::optional<std::string> inner = sequence(/*inside=*/true);
        if (!inner || at_ == word_.size()) return std::nullopt;
        ++at_;
        part = *inner;
      } else if (std::string_view("EtmL|").find(word_[at_]) != std::string_view::npos) {
        part = word_[at_++];
      } else {
        return std::nullopt;
      }
      const std::optional<std::size_t> times = repeats();
      if (!times || (!part.empty() && *times > (kLongest - out.size()) / part.size()))
        return std::nullopt;
      for (std::size_t i = 0; i < *times; ++i)
        out += part;
    }
    return out;
  }
  /// The number behind a star; 1: there is no star.
  std::optional<std::size_t> repeats() {
    if (at_ == word_.size() || word_[at_] != '*') return 1;
    std::size_t number = 0, digits = 0;
    for (++at_; at_ < word_.size() && std::isdigit(static_cast<unsigned char>(word_[at_])) != 0;
         ++at_, ++digits) {
      number = 10 * number + static_cast<std::size_t>(word_[at_] - '0');
      if (number > kLongest) return std::nullopt;
    }
    return digits == 0 ? std::nullopt : std::optional(number);
  }

  std::string_view word_;
  std::size_t at_ = 0;
};

}  // namespace

void set_pipeline_layout(Meaning& meaning) {
  const ForeignFlags::Setting* const layout = meaning.given("@pipeline_layout");
  if (layout == nullptr) return;
  const std::string typed = meaning.text("@pipeline_layout");
  std::string word = typed;
  std::erase_if(word, [](char c) { return c == ' ' || c == ','; });
  const std::optional<std::string> all = LayoutWord(word).written_out();
  const auto refuse = [&](const std::string& why, const char* fix) {
    meaning.refuse(fmt::format("{} {}: {}", layout->flag, typed, why), fix);
  };
  if (!all || all->find('E') != 0 || std::ranges::count(*all, 'E') != 1 || !all->ends_with('L') ||
      std::ranges::count(*all, 'L') != 1) {
    refuse("expected the blocks of each stage, from the embedding to the loss", "Ett|tt|tt|ttL");
    return;
  }
  if (all->find('m') != std::string::npos) {
    refuse("there is no prediction of several tokens", "remove m, and --mtp-num-layers");
    return;
  }
  const std::vector<std::string> stages = text::split(*all, '|');
  const auto ranks =
      static_cast<std::int64_t>(meaning.number("parallel.pipeline.size").value_or(1));
  const auto layers = static_cast<std::int64_t>(meaning.number("model.num_layers").value_or(0));
  if (const auto count = std::ranges::count(*all, 't'); count != layers) {
    refuse(fmt::format("it has {} layers, and the model {}", count, layers),
           "write a t for each layer");
    return;
  }
  if (ranks < 1 || std::ssize(stages) % ranks != 0 ||
      std::ranges::any_of(stages, [](const std::string& stage) { return stage.empty(); })) {
    refuse(fmt::format("{} parts cannot be divided among {} stages that each have a block",
                       stages.size(),
                       ranks),
           "give a multiple of --pipeline-model-parallel-size, without empty ones");
    return;
  }
  json::Value bounds = json::Value::array({json::Value::integer(0)});
  std::int64_t end = 0;
  for (const std::string& stage : stages) {
    end += std::ssize(stage);
    bounds.push_back(json::Value::integer(end));
  }
  meaning.set("parallel.pipeline.partition", std::move(bounds), layout);
  if (const std::int64_t chunks = std::ssize(stages) / ranks; chunks > 1)
    meaning.set("parallel.pipeline.chunks", json::Value::integer(chunks), layout);
}

}  // namespace tessera::interop::megatron
