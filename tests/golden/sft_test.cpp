// SPDX-License-Identifier: Apache-2.0
// Data that TRL prepares for supervised fine-tuning: tokens, labels, packed rows and batches.
#include <algorithm>
#include <string>
#include <vector>

#include "golden/golden.h"
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/tasks/sft_samples.h"
#include "tessera/text/chat/chat_template.h"

namespace tessera {
namespace {

using golden::at;
using tasks::LearnedTokens;
using tasks::LossOn;
using tasks::SftSamples;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kIgnored = -100;

/// The tokenizers that the recorded templates were used with.
const char* tokenizer_of(const std::string& chat_template) {
  if (chat_template == "llama3_masked") return "llama3_bpe";
  if (chat_template == "chatml_masked") return "qwen2_bpe";
  throw std::runtime_error("golden case of an unknown chat template " + chat_template);
}

Ids ids_of(const json::Value& list) {
  Ids out;
  for (const json::Value& item : list.items())
    out.push_back(item.as_integer().value());
  return out;
}

/// Labels as transformers has them: of each token itself.
Ids labels_of(const LearnedTokens& tokens) {
  Ids out;
  for (std::size_t i = 0; i < tokens.ids.size(); ++i)
    out.push_back(tokens.learned[i] != 0 ? tokens.ids[i] : kIgnored);
  return out;
}

LossOn rule_of(const std::string& rule) {
  if (rule == "assistant_only") return LossOn::Assistant;
  if (rule == "completion_only") return LossOn::Completion;
  if (rule == "all_tokens") return LossOn::All;
  throw std::runtime_error("golden case of an unknown rule " + rule);
}

struct Preparation {
  explicit Preparation(const json::Value& record)
      : tokenizer(
            text::tokenizer_from_folder(golden::folder() / "tokenizers" /
                                        tokenizer_of(at(record, "chat_template").as_string()))),
        chat(text::chat::find_chat_template(golden::folder() / "chat" /
                                            at(record, "chat_template").as_string())
                 .value()),
        rule(rule_of(at(record, "rule").as_string())) {}
  [[nodiscard]] LearnedTokens read(const json::Value& input) const {
    const data::Record record{input, "case"};
    return tasks::ConversationTokenizer(*tokenizer, &chat)
        .read(record, tasks::form_of(record, "text"), rule, "text");
  }
  text::TokenizerPtr tokenizer;
  text::chat::ChatTemplate chat;
  LossOn rule;
};

TEST(GoldenSft, RecordsBecomeTheTokensAndLabelsOfTrl) {
  int compared = 0;
  const json::Value file = golden::read_json(golden::folder() / "sft/labels.json");
  for (const json::Value& one : at(file, "cases").items()) {
    const json::Value* const examples = one.find("examples");
    if (examples == nullptr) continue;
    const Preparation preparation(one);
    for (const json::Value& example : examples->items()) {
      SCOPED_TRACE(at(one, "rule").as_string() + ": " + at(example, "input").dump());

      const LearnedTokens made = preparation.read(at(example, "input"));

      EXPECT_EQ(Ids(made.ids.begin(), made.ids.end()), ids_of(at(example, "input_ids")));
      EXPECT_EQ(labels_of(made), ids_of(at(example, "labels")));
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

/// One row of a dataset: its tokens without padding, and the labels of these as transformers has
/// them. The label of a row's first token is not recorded, because nothing predicts it.
struct Row {
  Ids ids, labels, starts;
};
std::vector<Row> rows_of(const SftSamples& samples) {
  std::vector<Row> out;
  for (std::int64_t i = 0; i < samples.size(); ++i) {
    data::Sample sample(samples, i);
    const auto ids = sample.values<std::int64_t>("input_ids"),
               labels = sample.values<std::int64_t>("labels"),
               mask = sample.values<std::int64_t>("attention_mask");
    const auto used = std::ranges::count(mask, 1);
    Row row{{ids.begin(), ids.begin() + used}, {kIgnored}, {}};
    row.labels.insert(row.labels.end(), labels.begin(), labels.begin() + used - 1);
    EXPECT_TRUE(
        std::all_of(labels.begin() + used - 1, labels.end(), [](auto l) { return l == kIgnored; }));
    if (sample.has("document_starts")) {
      const auto starts = sample.values<std::int64_t>("document_starts");
      row.starts.assign(starts.begin(), starts.begin() + used);
    }
    out.push_back(std::move(row));
  }
  return out;
}

/// Recorded labels without those of the first tokens of texts, which begin at `starts`.
Ids predicted(Ids labels, const Ids& starts) {
  for (const std::int64_t start : starts)
    labels[static_cast<std::size_t>(start)] = kIgnored;
  return labels;
}

TEST(GoldenSft, CutsTextsAtEitherEndAndDropsThoseWithoutALabel) {
  int compared = 0;
  const json::Value file = golden::read_json(golden::folder() / "sft/labels.json");
  for (const json::Value& one : at(file, "cases").items()) {
    const json::Value* const inputs = one.find("inputs");
    if (inputs == nullptr) continue;
    const std::string mode = at(one, "truncation_mode").as_string();
    SCOPED_TRACE(mode);
    const Preparation preparation(one);
    SftSamples samples({.length = at(one, "max_length").as_integer().value(),
                        .packing = tasks::Packing::None,
                        .truncation = mode == "keep_end" ? tasks::Truncation::KeepEnd
                                                         : tasks::Truncation::KeepStart});
    for (const json::Value& input : inputs->items())
      samples.add(preparation.read(input));
    samples.arrange();

    const std::vector<Row> made = rows_of(samples);

    const std::vector<json::Value>& kept = at(one, "kept").items();
    ASSERT_EQ(made.size(), kept.size());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(made[i].ids, ids_of(at(kept[i], "input_ids")));
      EXPECT_EQ(made[i].labels, predicted(ids_of(at(kept[i], "labels")), {0}));
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

tasks::Packing packing_of(const std::string& strategy) {
  if (strategy == "bfd") return tasks::Packing::BestFit;
  if (strategy == "bfd_split") return tasks::Packing::BestFitSplit;
  if (strategy == "wrapped") return tasks::Packing::Wrapped;
  throw std::runtime_error("golden case of an unknown packing " + strategy);
}

TEST(GoldenSft, PacksTextsAsTrlDoes) {
  int compared = 0;
  const json::Value file = golden::read_json(golden::folder() / "sft/packing.json");
  for (const json::Value& one : at(file, "cases").items()) {
    const std::string strategy = at(one, "strategy").as_string();
    SCOPED_TRACE(one.find("lengths")->dump() + strategy);
    SftSamples samples({.length = at(one, "seq_length").as_integer().value(),
                        .packing = packing_of(strategy),
                        .drop_unlearned = false});
    std::int32_t next = 0;
    for (const json::Value& length : at(one, "lengths").items()) {
      LearnedTokens text;
      for (std::int64_t i = 0; i < length.as_integer().value(); ++i, ++next) {
        text.ids.push_back(next);
        text.learned.push_back(next % 5 != 0 ? 1 : 0);
      }
      samples.add(std::move(text));
    }
    samples.arrange();

    const std::vector<Row> made = rows_of(samples);

    const std::vector<json::Value>& packed = at(one, "packed").items();
    ASSERT_EQ(made.size(), packed.size());
    for (std::size_t i = 0; i < packed.size(); ++i) {
      EXPECT_EQ(made[i].ids, ids_of(at(packed[i], "input_ids")));
      Ids starts = {0}, expected_starts;
      if (const json::Value* const lengths = packed[i].find("seq_lengths")) {
        starts.clear();
        std::int64_t begin = 0;
        for (const std::int64_t length : ids_of(*lengths)) {
          starts.push_back(begin);
          expected_starts.insert(expected_starts.end(), static_cast<std::size_t>(length), begin);
          begin += length;
        }
      }
      EXPECT_EQ(made[i].starts, expected_starts);
      EXPECT_EQ(made[i].labels, predicted(ids_of(at(packed[i], "labels")), starts));
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

/// A recorded batch has either one row per text or a single row with all texts.
TEST(GoldenSft, PadsAndJoinsTheTextsOfABatchAsTrlDoes) {
  int compared = 0;
  const json::Value file = golden::read_json(golden::folder() / "sft/collate.json");
  for (const json::Value& one : at(file, "cases").items()) {
    SCOPED_TRACE(one.dump());
    const json::Value& batch = at(one, "batch");
    const std::vector<json::Value>& rows = at(batch, "input_ids").items();
    const json::Value* const free = at(one, "arguments").find("padding_free");
    const bool joined = free != nullptr && free->as_bool();
    SftSamples samples(
        {.length = std::ssize(rows.front().items()),
         .pad_id = static_cast<std::int32_t>(at(one, "pad_token_id").as_integer().value()),
         .packing = joined ? tasks::Packing::InOrder : tasks::Packing::None});
    bool packed = false;
    for (const json::Value& example : at(one, "examples").items()) {
      const Ids ids = ids_of(at(example, "input_ids")), labels = ids_of(at(example, "labels"));
      // Texts that TRL has already packed are separate texts here.
      const json::Value* const parts = example.find("seq_lengths");
      packed |= parts != nullptr;
      std::size_t i = 0;
      for (const std::int64_t length : parts != nullptr ? ids_of(*parts) : Ids{std::ssize(ids)}) {
        LearnedTokens text;
        for (const std::size_t end = i + static_cast<std::size_t>(length); i < end; ++i) {
          text.ids.push_back(static_cast<std::int32_t>(ids[i]));
          text.learned.push_back(labels[i] != kIgnored ? 1 : 0);
        }
        samples.add(std::move(text));
      }
    }
    samples.arrange();
    if (packed && !joined) continue;  // rows of several texts, some padded: packing.json tests them

    ASSERT_EQ(samples.size(), std::ssize(rows));
    for (std::size_t i = 0; i < rows.size() && !joined; ++i) {
      data::Sample sample(samples, static_cast<std::int64_t>(i));
      const auto ids = sample.values<std::int64_t>("input_ids"),
                 mask = sample.values<std::int64_t>("attention_mask");
      EXPECT_EQ(Ids(ids.begin(), ids.end()), ids_of(rows[i]));
      EXPECT_EQ(Ids(mask.begin(), mask.end()), ids_of(at(batch, "attention_mask").items()[i]));
      Ids labels = predicted(ids_of(at(batch, "labels").items()[i]), {0});
      labels.resize(static_cast<std::size_t>(std::ranges::count(mask, 1)));
      EXPECT_EQ(rows_of(samples)[i].labels, labels);
      ++compared;
    }
    if (joined) {
      const Ids starts = ids_of(at(batch, "cu_seq_lens_q"));
      data::Sample sample(samples, 0);
      const auto ids = sample.values<std::int64_t>("input_ids"),
                 labels = sample.values<std::int64_t>("labels"),
                 begins = sample.values<std::int64_t>("document_starts");
      EXPECT_EQ(Ids(ids.begin(), ids.end()), ids_of(rows.front()));
      Ids shifted = {kIgnored}, positions, boundaries;
      shifted.insert(shifted.end(), labels.begin(), labels.end() - 1);
      EXPECT_EQ(shifted, ids_of(at(batch, "labels").items().front()));
      for (std::int64_t t = 0; t < std::ssize(begins); ++t) {
        positions.push_back(t - begins[static_cast<std::size_t>(t)]);
        if (positions.back() == 0) boundaries.push_back(t);
      }
      boundaries.push_back(std::ssize(begins));
      EXPECT_EQ(positions, ids_of(at(batch, "position_ids").items().front()));
      EXPECT_EQ(boundaries, starts);
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace tessera
