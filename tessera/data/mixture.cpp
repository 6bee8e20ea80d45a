// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::data {
namespace {

constexpr std::int64_t kFinest = 65'536;  // maximum number of places of a pattern
constexpr std::size_t kMostSources = 1000;

const char* const kSourcesForm = R"(write [{"path": "a.jsonl", "weight": 3}, {"path": "b.jsonl"}])";

[[noreturn]] void refuse_sources(const json::Value& value, const std::string& what) {
  throw Error(Error::Kind::Config,
              fmt::format("{}: data.sources: {}", value.place.text(), what),
              kSourcesForm);
}

std::vector<std::string> paths_in(const json::Value& path) {
  std::vector<std::string> out;
  const auto add = [&](const json::Value& one) {
    if (!one.is_string() || one.as_string().empty())
      refuse_sources(path, "\"path\" is neither a path nor a list of paths");
    out.push_back(one.as_string());
  };
  if (!path.is_array()) {
    add(path);
    return out;
  }
  for (const json::Value& one : path.items())
    add(one);
  if (out.empty()) refuse_sources(path, "\"path\" is an empty list");
  return out;
}

/// The weights as whole numbers without a common divisor.
std::vector<std::int64_t> whole_weights(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> out;
  constexpr double kNear = 1e-9;
  for (double scale = 1.0; scale <= 1e4 && out.empty(); scale *= 10.0) {
    const bool whole =
        sum * scale <= static_cast<double>(kFinest) &&
        std::ranges::all_of(weights, [&](double one) {
          return std::abs(one * scale - std::round(one * scale)) < kNear && one * scale > 0.5;
        });
    if (!whole) continue;
    for (const double weight : weights)
      out.push_back(std::llround(weight * scale));
  }
  if (out.empty()) {
    for (const double weight : weights) {
      const double share = weight / sum * static_cast<double>(kFinest - std::ssize(weights));
      out.push_back(std::max<std::int64_t>(1, std::llround(share)));
    }
  }
  std::int64_t divisor = 0;
  for (const std::int64_t weight : out)
    divisor = std::gcd(divisor, weight);
  for (std::int64_t& weight : out)
    weight /= divisor;
  return out;
}

class MixedTokens final : public TokenDataset {
 public:
  MixedTokens(std::vector<std::unique_ptr<TokenDataset>> parts, Mixture mixture)
      : parts_(std::move(parts)), mixture_(std::move(mixture)) {
    for (const auto& part : parts_)
      TESSERA_ASSERT(part->length() == parts_.front()->length());
  }
  [[nodiscard]] std::int64_t size() const override { return mixture_.size(); }
  [[nodiscard]] std::int64_t length() const override { return parts_.front()->length(); }
  bool get(std::int64_t index,
           std::int64_t* input_ids,
           std::int64_t* labels,
           std::int64_t* mask) const override {
    const Mixture::Place place = mixture_.at(index);
    return parts_[static_cast<std::size_t>(place.source)]->get(
        place.index, input_ids, labels, mask);
  }
  [[nodiscard]] bool separates_documents() const override {
    return parts_.front()->separates_documents();
  }
  void document_starts(const std::int64_t* input_ids, std::int64_t* starts) const override {
    parts_.front()->document_starts(input_ids, starts);
  }

 private:
  std::vector<std::unique_ptr<TokenDataset>> parts_;
  Mixture mixture_;
};

}  // namespace

std::string DataSource::name() const {
  return text::join(paths, ", ");
}

std::vector<DataSource> sources_of(const json::Value& sources) {
  std::vector<DataSource> out;
  if (sources.is_null()) return out;
  if (!sources.is_array() || sources.items().empty())
    refuse_sources(sources, "expected a list of sources");
  if (sources.items().size() > kMostSources)
    refuse_sources(sources, fmt::format("there are more than {} sources", kMostSources));
  for (const json::Value& item : sources.items()) {
    if (!item.is_object()) refuse_sources(item, fmt::format("an entry is {}", item.type_name()));
    DataSource& source = out.emplace_back();
    for (const auto& [name, value] : item.members()) {
      if (name == "path") {
        source.paths = paths_in(value);
      } else if (name == "weight") {
        if (!value.is_number() || !(value.as_double() > 0.0) || value.as_double() > 1e12)
          refuse_sources(value, "\"weight\" is not a number above 0");
        source.weight = value.as_double();
      } else {
        refuse_sources(value, fmt::format("unknown key \"{}\"", name));
      }
    }
    if (source.paths.empty()) refuse_sources(item, "an entry has no \"path\"");
  }
  return out;
}

void spell_out_sources(json::Value& config) {
  json::Value* const data = config.is_object() ? config.find("data") : nullptr;
  const json::Value* const sources =
      data != nullptr && data->is_object() ? data->find("sources") : nullptr;
  if (sources == nullptr) return;
  const json::Place place = sources->place;
  json::Value all = json::Value::array({});
  for (const DataSource& source : sources_of(*sources)) {
    for (const std::string& path : source.paths)
      all.push_back(json::Value::string(path));
  }
  if (all.items().empty()) return;  // null
  if (const json::Value* const train = data->find("train")) {
    TESSERA_REQUIRE(*train == all,
                    Config,
                    fmt::format("{}: data.train and data.sources are both given", place.text()),
                    "keep one of them: data.train reads all files once, data.sources by weights");
    return;
  }
  all.place = place;
  (*data)["train"] = std::move(all);
}

MixUntil mix_until_of(const DataOptions& options) {
  return options.mix_until == "first" ? MixUntil::First : MixUntil::Last;
}

Mixture Mixture::interleaved(std::vector<std::int64_t> sizes,
                             const std::vector<double>& weights,
                             MixUntil until) {
  TESSERA_ASSERT(!sizes.empty() && sizes.size() == weights.size());
  TESSERA_ASSERT(std::ranges::all_of(sizes, [](std::int64_t size) { return size > 0; }));
  Mixture out;
  out.sizes_ = std::move(sizes);
  out.counts_ = whole_weights(weights);
  // The k-th sample of a source is placed in the middle of the k-th of equally many equal
  // intervals.
  struct Turn {
    std::int64_t half = 0, stretches = 0;  ///< at half / (2 * stretches) of the pattern
    std::uint16_t source = 0, earlier = 0;
  };
  std::vector<Turn> turns;
  for (std::size_t s = 0; s < out.counts_.size(); ++s) {
    for (std::int64_t k = 0; k < out.counts_[s]; ++k)
      turns.push_back({2 * k + 1,
                       out.counts_[s],
                       static_cast<std::uint16_t>(s),
                       static_cast<std::uint16_t>(k)});
  }
  std::ranges::stable_sort(turns, [](const Turn& a, const Turn& b) {
    return a.half * b.stretches < b.half * a.stretches;
  });
  for (const Turn& turn : turns) {
    out.pattern_.push_back(turn.source);
    out.earlier_.push_back(turn.earlier);
  }
  // For each source: the position of the first sample beyond its size, and of its last sample.
  const auto length = std::ssize(turns);
  const auto place_of = [&](std::size_t s, std::int64_t k) {
    const std::int64_t within = k % out.counts_[s];
    for (std::int64_t p = 0; p < length; ++p) {
      const auto at = static_cast<std::size_t>(p);
      if (out.pattern_[at] == s && out.earlier_[at] == within)
        return k / out.counts_[s] * length + p;
    }
    TESSERA_ASSERT(false);
    return std::int64_t{0};
  };
  for (std::size_t s = 0; s < out.sizes_.size(); ++s) {
    const std::int64_t end =
        until == MixUntil::First ? place_of(s, out.sizes_[s]) : place_of(s, out.sizes_[s] - 1) + 1;
    if (s == 0)
      out.size_ = end;
    else
      out.size_ = until == MixUntil::First ? std::min(out.size_, end) : std::max(out.size_, end);
  }
  return out;
}

Mixture Mixture::joined(std::vector<std::int64_t> sizes) {
  Mixture out;
  out.size_ = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  out.sizes_ = std::move(sizes);
  return out;
}

Mixture::Place Mixture::at(std::int64_t index) const {
  TESSERA_ASSERT(index >= 0 && index < size_);
  if (counts_.empty()) {
    std::int64_t source = 0;
    while (index >= sizes_[static_cast<std::size_t>(source)])
      index -= sizes_[static_cast<std::size_t>(source++)];
    return {source, index};
  }
  const auto length = std::ssize(pattern_);
  const auto within = static_cast<std::size_t>(index % length);
  const std::size_t source = pattern_[within];
  const std::int64_t k = index / length * counts_[source] + earlier_[within];
  return {.source = static_cast<std::int64_t>(source),
          .index = k % sizes_[source],
          .pass = k / sizes_[source]};
}

std::int64_t Mixture::count(std::int64_t source) const {
  const auto s = static_cast<std::size_t>(source);
  if (counts_.empty()) return sizes_[s];
  const auto length = std::ssize(pattern_);
  const auto rest = pattern_.begin() + size_ % length;
  return size_ / length * counts_[s] +
         std::count(pattern_.begin(), rest, static_cast<std::uint16_t>(s));
}

std::unique_ptr<TokenDataset> make_mixed(std::vector<std::unique_ptr<TokenDataset>> parts,
                                         Mixture mixture) {
  return std::make_unique<MixedTokens>(std::move(parts), std::move(mixture));
}

}  // namespace tessera::data
