// SPDX-License-Identifier: Apache-2.0
// Language modelling after a prefix: windows of a token stream, or documents, whose first tokens
// see each other in both directions, or records whose prompt does; the model learns the tokens
// after them. Source: Raffel et al. 2020, "Exploring the limits of transfer learning",
// section 3.2.2.
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
#include "tessera/base/log.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"
#include "tessera/tasks/conversation.h"
#include "tessera/tasks/prefix_records.h"
#include "tessera/tasks/record_task.h"
#include "tessera/tasks/sft_samples.h"
#include "tessera/tasks/task.h"
#include "tessera/tasks/token_task.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kNoLabel = -100;
constexpr std::uint64_t kPrefixSite = 0x70726566;  // separates these random numbers from others

struct PrefixOptions {
  bool records = false;
  std::string chat_template;
  double min_prefix = 0.0, max_prefix = 1.0;
  bool dynamic = true;
  std::int64_t seed = 1234;
  void describe(config::Fields& fields) {
    fields.field("records",
                 records,
                 {.text = "Whether the data has records, whose prompt is the prefix: prompt and "
                          "completion, or a conversation up to the assistant's last turn; false: "
                          "texts, with prefixes of random lengths."});
    fields.field("chat_template",
                 chat_template,
                 {.text = "With records: file with a chat template in Jinja, or chatml.",
                  .default_text = "the one of the model's folder"});
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
/// prefix. If documents are separate, each has a prefix, and "prefix_lengths" [T] are those of the
/// tokens' documents. All lengths within the shares are equally likely, as a function of (seed,
/// number of the sample in the run), or, if not dynamic, of (seed, index).
class PrefixTokens final : public data::Dataset {
 public:
  PrefixTokens(std::unique_ptr<data::TokenDataset> tokens, PrefixOptions options)
      : tokens_(std::move(tokens)), options_(std::move(options)) {}

  [[nodiscard]] std::string name() const override { return "tokens after a prefix"; }
  [[nodiscard]] std::int64_t size() const override { return tokens_->size(); }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override {
    const std::vector<std::int64_t> shape = {tokens_->length()};
    const bool apart = tokens_->separates_documents();
    std::vector<data::TensorSpec> out = {
        {.name = "input_ids", .dtype = DType::I64, .shape = shape},
        {.name = "labels", .dtype = DType::I64, .shape = shape},
        {.name = "prefix_lengths",
         .dtype = DType::I64,
         .shape = apart ? shape : std::vector<std::int64_t>()},
        {.name = "attention_mask", .dtype = DType::I64, .shape = shape, .optional = true}};
    if (apart) out.push_back({.name = "document_starts", .dtype = DType::I64, .shape = shape});
    return out;
  }
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return tokens_->length();
  }
  void read(std::int64_t index, data::SampleWriter& out) const override {
    const std::span<std::int64_t> ids = out.tensor<std::int64_t>("input_ids");
    const std::span<std::int64_t> labels = out.tensor<std::int64_t>("labels");
    const std::span<std::int64_t> mask = out.tensor<std::int64_t>("attention_mask");
    if (tokens_->get(index, ids.data(), labels.data(), mask.data())) out.need("attention_mask");
    const std::int64_t number = options_.dynamic ? out.number() : index;
    if (tokens_->separates_documents()) {
      const std::span<std::int64_t> starts = out.tensor<std::int64_t>("document_starts");
      tokens_->document_starts(ids.data(), starts.data());
      choose_prefixes(starts, number, labels, out.tensor<std::int64_t>("prefix_lengths"));
      return;
    }
    const std::int64_t prefix = prefix_of(
        std::ranges::count_if(mask, [](std::int64_t one) { return one != 0; }), number, 0);
    ignore_prefix(labels, prefix);
    out.set("prefix_lengths", prefix);
  }

 private:
  /// Label t is the token after t: the first one that is learned follows the prefix.
  static void ignore_prefix(std::span<std::int64_t> labels, std::int64_t prefix) {
    std::fill(labels.begin(), labels.begin() + (prefix - 1), kNoLabel);
  }
  /// One prefix for each document of a sample.
  void choose_prefixes(std::span<const std::int64_t> starts,
                       std::int64_t sample,
                       std::span<std::int64_t> labels,
                       std::span<std::int64_t> lengths) const {
    std::uint64_t document = 0;
    for (std::size_t begin = 0, end = 0; begin < starts.size(); begin = end, ++document) {
      while (end < starts.size() && starts[end] == starts[begin])
        ++end;
      const std::int64_t prefix =
          prefix_of(static_cast<std::int64_t>(end - begin), sample, document);
      ignore_prefix(labels.subspan(begin, end - begin), prefix);
      std::ranges::fill(lengths.subspan(begin, end - begin), prefix);
    }
  }
  /// Returns a length in [1, `tokens` - 1], or 1 for a single token.
  [[nodiscard]] std::int64_t prefix_of(std::int64_t tokens,
                                       std::int64_t sample,
                                       std::uint64_t document) const {
    const auto whole = static_cast<double>(tokens);
    const std::int64_t most = std::max<std::int64_t>(tokens - 1, 1);
    const std::int64_t low = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(std::ceil(whole * options_.min_prefix)), 1, most);
    const std::int64_t high = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(std::floor(whole * options_.max_prefix)), low, most);
    const Philox random{mix64(static_cast<std::uint64_t>(options_.seed), kPrefixSite)};
    const Philox::Block words = random(static_cast<std::uint64_t>(sample), document);
    const std::uint64_t bits = (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
    return low + static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(high - low + 1));
  }

  std::unique_ptr<data::TokenDataset> tokens_;
  PrefixOptions options_;
};

class PrefixLm final : public Task {
 public:
  explicit PrefixLm(PrefixOptions options) : options_(std::move(options)) {}

  [[nodiscard]] std::string objective() const override { return "prefix_lm"; }
  [[nodiscard]] bool reads_records() const override { return options_.records; }
  [[nodiscard]] bool streams() const override { return true; }
  [[nodiscard]] std::vector<std::string> formats() const override {
    if (!options_.records) return {};
    std::vector<std::string> out;
    for (const auto& form : kForms)
      out.emplace_back(form.name);
    return out;
  }
  [[nodiscard]] std::vector<data::TensorSpec> tensors(std::int64_t sequence_length) const override {
    std::vector<data::TensorSpec> out = Task::tensors(sequence_length);
    out.push_back({.name = "prefix_lengths", .dtype = DType::I64});
    return out;
  }

  [[nodiscard]] data::Datasets open(const DataRequest& request) const override {
    if (options_.records) {
      return open_task_records(request, [this](const DataRequest& kept) { return reader(kept); });
    }
    data::Datasets out = open_tokens(request, request.sequence_length, samples_of(request));
    if (!out.fingerprint.empty()) out.fingerprint += " prefix " + options_.text();
    return out;
  }

  [[nodiscard]] data::OpenedDataset open_held_out(const DataRequest& request,
                                                  const std::vector<std::string>& names,
                                                  const std::string& key) const override {
    if (options_.records) return open_held_out_records(names, key, reader(request));
    return open_held_out_tokens(request, names, key, request.sequence_length, samples_of(request));
  }

 private:
  [[nodiscard]] ReadRecords reader(const DataRequest& request) const {
    return [this, &request](const std::vector<std::string>& names, data::Split split) {
      const data::DataOptions& data = request.options;
      const auto chat = open_chat_template(options_.chat_template,
                                           {request.model_folder, request.tokenizer_folder},
                                           request.tokenizer);
      const bool named = data.format != "auto";
      auto samples = std::make_unique<SftSamples>(SftSamplesOptions{
          .length = request.sequence_length,
          .pad_id = request.tokenizer.padding(),
          .packing = Packing::None,
          .loss_on = LossOn::Completion,
          .form = named ? std::optional(config::value_of(kForms, data.format)) : std::nullopt,
          .text_field = data.text_field});
      samples->read_files(data::record_files(names, split),
                          record_options(data, "{\"prompt\": \"...\", \"completion\": \"...\"}"),
                          ConversationTokenizer(request.tokenizer, chat ? &*chat : nullptr),
                          request.how.poll);
      if (samples->unlearned() > 0) {
        log::warn_once(fmt::format("{} records have no completion{} and are left out",
                                   text::with_commas(samples->unlearned()),
                                   samples->cut() > 0 ? " within data.sequence_length" : ""));
      }
      return std::make_unique<PrefixRecords>(std::move(samples));
    };
  }

  [[nodiscard]] data::TokenSamples samples_of(const DataRequest& request) const {
    const auto make = [this](std::unique_ptr<data::TokenDataset> tokens, bool training) {
      PrefixOptions own = options_;
      own.dynamic = own.dynamic && training;
      return std::make_unique<PrefixTokens>(std::move(tokens), std::move(own));
    };
    return {.make = make, .seed = request.seed};
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
  const auto refuse = [&](const char* key, const char* what, const char* fix) {
    if (origins.given(key)) problems.add(origins.place(key), key, what, fix);
  };
  if (options.records) {
    for (const char* key : {"min_prefix", "max_prefix", "dynamic", "seed"})
      refuse(key, "the prefix of a record is its prompt", "remove it, or set records to false");
  } else {
    refuse("chat_template", "texts have no conversations", "remove it, or set records to true");
  }
  return std::make_unique<PrefixLm>(std::move(options));
}

TESSERA_TASK("prefix_lm", make_prefix_lm);

}  // namespace
}  // namespace tessera::tasks
