// SPDX-License-Identifier: Apache-2.0
// Language modelling after a prefix: windows of a token stream, or documents, whose first tokens
// see each other in both directions; the model learns the tokens after them. Source: Raffel et al.
// 2020, "Exploring the limits of transfer learning", section 3.2.2.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kNoLabel = -100;
constexpr std::uint64_t kPrefixSite = 0x70726566;  // separates these random numbers from others

struct PrefixOptions {
  double min_prefix = 0.0, max_prefix = 1.0;
  bool dynamic = true;
  std::int64_t seed = 1234;
  void describe(config::Fields& fields) {
    fields.field("min_prefix",
                 min_prefix,
                 {.text = "Shortest prefix, as a share of a sample's tokens; at least one token.",
                  .min = 0,
                  .max = 1});
    fields.field("max_prefix",
                 max_prefix,
                 {.text = "Longest prefix, as a share of a sample's tokens; all but one at most.",
                  .min = 0,
                  .max = 1});
    fields.field("dynamic",
                 dynamic,
                 {.text = "Whether a sample has a new prefix each time it is read for training; "
                          "false: always the same one."});
    fields.field("seed", seed, {.text = "Seed of the prefixes.", .min = 0, .max = 1e15});
  }
  [[nodiscard]] std::string text() const {
    return fmt::format(
        "{} {} {} {}", text::number(min_prefix), text::number(max_prefix), dynamic, seed);
  }
};

/// The samples of another dataset with "prefix_lengths" [], int64, and labels only after the
/// prefix. All lengths within the shares are equally likely, as a function of (seed, number of the
/// sample in the run), or, if not dynamic, of (seed, index).
class PrefixTokens final : public data::Dataset {
 public:
  PrefixTokens(std::unique_ptr<data::TokenDataset> tokens, PrefixOptions options)
      : tokens_(std::move(tokens)), options_(options) {}

  [[nodiscard]] std::string name() const override { return "tokens after a prefix"; }
  [[nodiscard]] std::int64_t size() const override { return tokens_->size(); }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override {
    const std::int64_t length = tokens_->length();
    return {{.name = "input_ids", .dtype = DType::I64, .shape = {length}},
            {.name = "labels", .dtype = DType::I64, .shape = {length}},
            {.name = "prefix_lengths", .dtype = DType::I64},
            {.name = "attention_mask", .dtype = DType::I64, .shape = {length}, .optional = true}};
  }
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return tokens_->length();
  }
  void read(std::int64_t index, data::SampleWriter& out) const override {
    const std::span<std::int64_t> ids = out.tensor<std::int64_t>("input_ids");
    const std::span<std::int64_t> labels = out.tensor<std::int64_t>("labels");
    const std::span<std::int64_t> mask = out.tensor<std::int64_t>("attention_mask");
    if (tokens_->get(index, ids.data(), labels.data(), mask.data())) out.need("attention_mask");
    const std::int64_t prefix =
        prefix_of(std::ranges::count_if(mask, [](std::int64_t one) { return one != 0; }),
                  options_.dynamic ? out.number() : index);
    // Label t is the token after t: the first one that is learned follows the prefix.
    std::fill(labels.begin(), labels.begin() + (prefix - 1), kNoLabel);
    out.set("prefix_lengths", prefix);
  }

 private:
  /// From 1 to `tokens` - 1, or 1 of a single token.
  [[nodiscard]] std::int64_t prefix_of(std::int64_t tokens, std::int64_t sample) const {
    const auto whole = static_cast<double>(tokens);
    const std::int64_t most = std::max<std::int64_t>(tokens - 1, 1);
    const std::int64_t low = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(std::ceil(whole * options_.min_prefix)), 1, most);
    const std::int64_t high = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(std::floor(whole * options_.max_prefix)), low, most);
    const Philox random{mix64(static_cast<std::uint64_t>(options_.seed), kPrefixSite)};
    const Philox::Block words = random(static_cast<std::uint64_t>(sample));
    const std::uint64_t bits = (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
    return low + static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(high - low + 1));
  }

  std::unique_ptr<data::TokenDataset> tokens_;
  PrefixOptions options_;
};

class PrefixLm final : public Task {
 public:
  explicit PrefixLm(PrefixOptions options) : options_(options) {}

  [[nodiscard]] std::string objective() const override { return "prefix_lm"; }
  [[nodiscard]] std::vector<data::TensorSpec> tensors(std::int64_t sequence_length) const override {
    std::vector<data::TensorSpec> out = Task::tensors(sequence_length);
    out.push_back({.name = "prefix_lengths", .dtype = DType::I64});
    return out;
  }

  [[nodiscard]] data::Datasets open(const DataRequest& request) const override {
    require_whole(request.options);
    data::Datasets out = data::open_datasets(request.options,
                                             request.tokenizer,
                                             request.vocab_size,
                                             request.sequence_length,
                                             request.min_samples,
                                             request.how);
    if (!out.fingerprint.empty()) out.fingerprint += " prefix " + options_.text();
    out.train = with_prefix(std::move(out.train), options_.dynamic);
    if (out.validation) out.validation = with_prefix(std::move(out.validation), /*dynamic=*/false);
    return out;
  }

  [[nodiscard]] data::OpenedDataset open_held_out(const DataRequest& request,
                                                  const std::vector<std::string>& names,
                                                  const std::string& key) const override {
    require_whole(request.options);
    data::OpenedDataset out = data::open_dataset(request.options,
                                                 names,
                                                 key,
                                                 request.tokenizer,
                                                 request.vocab_size,
                                                 request.sequence_length,
                                                 request.how,
                                                 /*shorter=*/true);
    out.dataset = with_prefix(std::move(out.dataset), /*dynamic=*/false);
    return out;
  }

 private:
  static void require_whole(const data::DataOptions& options) {
    TESSERA_REQUIRE(!options.separate_documents,
                    Unsupported,
                    "data.separate_documents keeps documents apart, and a sample of prefix_lm has "
                    "one prefix",
                    "set data.pack to false, so that each document is a sample of its own");
  }

  [[nodiscard]] std::unique_ptr<data::Dataset> with_prefix(std::unique_ptr<data::Dataset> dataset,
                                                           bool dynamic) const {
    auto* const tokens = dynamic_cast<data::TokenDataset*>(dataset.get());
    TESSERA_ASSERT(tokens != nullptr);
    (void)dataset.release();
    PrefixOptions options = options_;
    options.dynamic = dynamic;
    return std::make_unique<PrefixTokens>(std::unique_ptr<data::TokenDataset>(tokens), options);
  }

  PrefixOptions options_;
};

std::unique_ptr<Task> make_prefix_lm(const json::Value& params,
                                     config::Problems& problems,
                                     config::Origins& origins) {
  PrefixOptions options;
  config::read(params, options, problems, origins);
  if (options.min_prefix > options.max_prefix) {
    problems.add(
        origins.place("min_prefix"),
        "min_prefix",
        fmt::format("min_prefix {} is above max_prefix {}", options.min_prefix, options.max_prefix),
        "lower it");
  }
  return std::make_unique<PrefixLm>(options);
}

TESSERA_TASK("prefix_lm", make_prefix_lm);

}  // namespace
}  // namespace tessera::tasks
