// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Decoders with windows and soft caps (Gemma 2), norms of heads (Qwen 3) and of all heads together
// (OLMo 2), and ALiBi (BLOOM) keep the documents of a sample apart where ranks share layers or
// tokens. Other layouts: family_layouts_test.cpp.
#include <string>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

TinyRun run_of(const std::string& family) {
  TinyRun run;
  run.set("model", R"({"num_layers": 2, "hidden_size": 32, "num_heads": 4, "max_positions": 16})");
  run.set("model.family", "\"" + family + "\"").set("model.attention_dropout", "0.1");
  if (family == "gemma2") run.set("model.sliding_window", "5");
  if (family == "gemma2" || family == "qwen3") run.set("model.num_kv_heads", "2");
  return run;
}

class DecoderLayouts : public testing::TestWithParam<const char*> {};

TEST_P(DecoderLayouts, KeepDocumentsApart) {
  TinyRun run = run_of(GetParam());
  run.use_separate_documents();

  expect_same(run, {{.ranks = 2, .tensor = 2}, {.ranks = 2, .context = 2}});
}

INSTANTIATE_TEST_SUITE_P(Families,
                         DecoderLayouts,
                         testing::Values("gemma2", "qwen3", "olmo2", "bloom"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tessera::test
