// SPDX-License-Identifier: Apache-2.0
// What is asked of a model and what is expected of it, taken out of samples.
#include "tessera/engine/written_texts.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/engine/open_model.h"

namespace tessera::engine {
namespace {

using Ids = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

struct Row {
  Longs ids, labels, mask;
};

class Rows final : public data::Dataset {
 public:
  explicit Rows(std::vector<Row> rows) : rows_(std::move(rows)) {}
  [[nodiscard]] std::string name() const override { return "rows"; }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(rows_); }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override {
    return {{.name = "input_ids", .dtype = DType::I64, .shape = {std::ssize(rows_[0].ids)}},
            {.name = "labels", .dtype = DType::I64, .shape = {std::ssize(rows_[0].labels)}},
            {.name = "attention_mask",
             .dtype = DType::I64,
             .shape = {std::ssize(rows_[0].ids)},
             .optional = true}};
  }
  void read(std::int64_t index, data::SampleWriter& out) const override {
    const Row& row = rows_.at(static_cast<std::size_t>(index));
    out.set("input_ids", row.ids);
    out.set("labels", row.labels);
    out.set("attention_mask", row.mask);
    if (std::ranges::count(row.mask, 0) > 0) out.need("attention_mask");
  }

 private:
  std::vector<Row> rows_;
};

constexpr std::int32_t kEnd = 9;

TEST(PromptOf, IsWhatStandsBeforeTheFirstLearnedToken) {
  // Labels are the tokens behind their places.
  const Rows rows({{{1, 2, 3, 4, 9, 0}, {-100, -100, 4, 9, -100, -100}, {1, 1, 1, 1, 1, 0}},
                   {{1, 2, 3, 4, 5, 6}, {-100, 3, -100, 5, 6, -100}, {1, 1, 1, 1, 1, 1}},
                   {{1, 2, 3, 4, 5, 6}, {-100, -100, -100, -100, -100, -100}, {1, 1, 1, 1, 1, 1}}});

  const PromptAndAnswer one = prompt_of(rows, 0, /*answers=*/false, kEnd);
  EXPECT_EQ(one.prompt, (Ids{1, 2, 3}));
  EXPECT_EQ(one.answer, (Ids{4})) << "without the end of text";
  const PromptAndAnswer turns = prompt_of(rows, 1, /*answers=*/false, kEnd);
  EXPECT_EQ(turns.prompt, (Ids{1, 2}));
  EXPECT_EQ(turns.answer, (Ids{3})) << "the first answer of several";
  EXPECT_TRUE(prompt_of(rows, 2, /*answers=*/false, kEnd).prompt.empty());
}

TEST(PromptOf, OfAnEncoderIsWhatItReads) {
  const Rows rows({{{5, 6, 9, 0}, {7, 8, 9, -100}, {1, 1, 1, 0}}});

  const PromptAndAnswer sample = prompt_of(rows, 0, /*answers=*/true, kEnd);

  EXPECT_EQ(sample.prompt, (Ids{5, 6, 9}));
  EXPECT_EQ(sample.answer, (Ids{7, 8}));
}

TEST(WriteTexts, WritesWhatTheModelContinuesEachPromptWith) {
  const files::TempDir folder;
  (void)test::TinyRun().train({.ranks = 1, .accumulation = 2}, 2, folder.path());
  const Rows rows(
      {{{'t', 'h', 'e', ' ', 'c', 'a'}, {-100, -100, -100, 'c', 'a', -100}, Longs(6, 1)},
       {{'a', 'b', 'c', 'd', 'e', 'f'}, Longs(6, -100), Longs(6, 1)},
       {{'o', 'n', ' ', 'a', ' ', 'm'}, {-100, ' ', 'a', ' ', 'm', -100}, Longs(6, 1)}});
  comm::run_threads(1, [&](comm::World& world) {
    at::set_num_threads(1);
    const auto model = find_model(folder.path());
    load_model(*model, world);
    Generator generator(*model->executor, *model->tokenizer, model->shape);
    GenerateOptions options;
    options.max_new_tokens = 6;
    options.sampler.temperature = 0.0;
    std::vector<std::int64_t> done;

    const auto texts = write_texts(generator,
                                   rows,
                                   *model->tokenizer,
                                   /*count=*/10,
                                   /*answers=*/false,
                                   options,
                                   [&](std::int64_t count) { done.push_back(count); });

    ASSERT_EQ(texts.size(), 2U);
    EXPECT_EQ(done, (Longs{1, 3}));
    EXPECT_EQ(texts[0].expected, "ca");
    EXPECT_EQ(texts[1].expected, " a m");
    EXPECT_EQ(
        texts[0].written,
        model->tokenizer->decode(generator.run_ids({'t', 'h', 'e', ' '}, options, {}).tokens));
    EXPECT_EQ(texts[1].written,
              model->tokenizer->decode(generator.run_ids({'o', 'n'}, options, {}).tokens));
  });
}

}  // namespace
}  // namespace tessera::engine
