// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Texts that are generated together, and beams that share their KV cache, for every family that
// generates text, including ones with windows, soft caps, biases by distance and encoders.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "golden/golden.h"
#include "golden/recorded_generator.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/comm/world.h"
#include "tessera/parallel/tensor_rules.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using golden::RecordedGenerator;

/// For sums of about 12 log-probabilities in fp32; a cache of another beam would differ by 0.01 or
/// more.
constexpr double kScores = 1e-4;

bool is_known(const fs::path& folder) {
  const json::Value config = golden::read_json(folder / "config.json");
  if (!models::families().has(golden::at(config, "model_type").as_string())) return false;
  try {
    (void)models::options_from_hf(config);
  } catch (const Error&) {
    return false;  // golden.models reports why
  }
  return true;
}

/// The sharing of a model's layers among ranks.
struct Shared {
  comm::World* world = nullptr;
  nn::TensorMode mode = nn::TensorMode::OneD;
};

/// Ranks can share a layer with as many heads, and in mode 1d in a mesh that tells which ranks have
/// the same heads of keys and values.
bool can_share(const models::Resolved& model, const Shared& shared) {
  if (shared.world == nullptr) return true;
  const mesh::Mesh& mesh = shared.world->mesh();
  if (shared.mode != nn::TensorMode::OneD) {
    return std::ranges::all_of(model.model.blocks, [](const nn::BlockSpec& spec) {
      return spec.make()->grid_obstacle().empty();
    });
  }
  const int sharers = mesh.size(mesh::AxisSet::tp());
  return model.num_heads >= sharers &&
         parallel::ranks_that_share_a_head(model.model, sharers) == mesh.size(mesh::Axis::TpRow);
}

/// Calls check(model, recorded texts) for each model with texts whose layers the ranks can share.
void for_each_model(const std::function<void(RecordedGenerator&, const json::Value& record)>& check,
                    const Shared& shared = {}) {
  int count = 0;
  for (const fs::path& folder : golden::cases("models")) {
    if (!fs::exists(folder / "generation.json") || !is_known(folder)) continue;
    SCOPED_TRACE(folder.filename().string());
    const json::Value config = golden::read_json(folder / "config.json");
    if (!can_share(golden::resolved_from_hf(config), shared)) continue;
    RecordedGenerator model(folder, shared.world, shared.mode);
    check(model, golden::read_json(folder / "generation.json"));
    ++count;
  }
  EXPECT_GT(count, 0);
}

void expect_recorded_texts(RecordedGenerator& model, const json::Value& record) {
  engine::GenerateOptions options;
  options.max_new_tokens = golden::at(record, "new_tokens").as_integer().value();
  options.sampler.temperature = 0.0;
  options.ignore_eos = true;
  std::vector<engine::Generator::Asked> asked;
  const auto& cases = golden::at(record, "cases").items();
  for (const json::Value& one : cases)
    asked.push_back({golden::ids_of(golden::at(one, "prompt")), 1});
  for (const int at_once : {2, static_cast<int>(asked.size())}) {
    std::vector<std::vector<std::int32_t>> made(asked.size());

    model.generator.run_prompts(asked, options, at_once, [&](std::size_t i, auto text) {
      made.at(i) = std::move(text.tokens);
    });

    for (std::size_t i = 0; i < made.size(); ++i)
      EXPECT_EQ(made[i], golden::ids_of(golden::at(cases[i], "greedy")))
          << "prompt " << i << " of " << at_once << " at once";
  }
}

TEST(GoldenTextBatches, PromptsOfDifferentLengthsGiveTheTextsOfEachAlone) {
  for_each_model(expect_recorded_texts);
}

TEST(GoldenTextBatches, TwoTensorParallelRanksMakeThemToo) {
  comm::run_threads(mesh::Mesh({.tp_col = 2}),
                    [](comm::World& world) { for_each_model(expect_recorded_texts, {&world}); });
}

// Errors of logits, relative to the largest one. A code of a weight is off by at most 1/254 of the
// largest weight of its row, and a hidden state in bf16 by at most 1/512 of itself; the products of
// two or three layers and of the head add such errors. Each bound is about twice the largest error
// that was measured over all models, because other processors add in another order.
/// 8-bit weights against those of the folder in fp32: measured 0.013 (bloom) to 0.072 (t5_v11).
constexpr double kEightBits = 0.15;
/// The same 8-bit values with hidden states in bf16 against fp32: measured 0.007 to 0.036 (mt5).
constexpr double kHiddenStates = 0.08;
/// Ranks that add other parts of a sum in bf16, against one rank: measured up to 0.023 with 2 ranks
/// and 0.029 with 4.
constexpr double kOtherSums = 0.06;

/// The codes and scales of 8-bit weights, or 16-bit values without scales, by name.
using Weights = std::map<std::string, std::pair<at::Tensor, at::Tensor>>;

Weights narrow_weights(RecordedGenerator& model) {
  parallel::ModelInstance& instance = model.runner.instance();
  instance.to_int8();
  Weights out;
  for (int block = 0; block < instance.num_blocks(); ++block) {
    for (const auto& param : instance.params(block))
      out[param->info().name] = {param->tensor(), param->scales()};
  }
  return out;
}

/// A prompt and its recorded continuation.
std::vector<std::int64_t> a_text(const json::Value& record) {
  const json::Value& one = golden::at(record, "cases").items().back();
  std::vector<std::int64_t> out;
  for (const char* const part : {"prompt", "greedy"}) {
    const std::vector<std::int32_t> ids = golden::ids_of(golden::at(one, part));
    out.insert(out.end(), ids.begin(), ids.end());
  }
  return out;
}

/// The logits [T, V] of a text: of its first `read` tokens together, then of one token at a time
/// with the cache. A decoder that answers reads the text as its source as well.
at::Tensor logits_of(RecordedGenerator& model,
                     const std::vector<std::int64_t>& text,
                     std::size_t read) {
  const bool answers = model.resolved.trunk.output.target.has_value();
  const at::Tensor all_1T = at::tensor(text, at::kLong).view({1, -1});
  nn::StepContext context(nn::Mode::Prefill, 1);
  context.want_logits = true;
  std::vector<at::Tensor> out;
  while (context.position < all_1T.size(1)) {
    const bool first = context.position == 0;
    const std::int64_t count = first ? static_cast<std::int64_t>(read) : 1;
    const at::Tensor ids = all_1T.narrow(1, context.position, count);
    nn::Batch batch =
        test::make_batch(answers ? all_1T.narrow(1, 0, first ? all_1T.size(1) : 0) : ids);
    if (answers) batch.set("decoder_input_ids", ids);
    out.push_back(
        model.runner.infer(batch, context).outputs.at("logits")[0].to(at::kFloat).clone());
    context.set_mode(nn::Mode::Decode);
    context.position += count;
  }
  return at::cat(out);
}

double error_of(const at::Tensor& logits, const at::Tensor& exact) {
  return ((logits - exact).abs().max() / exact.abs().max()).item<double>();
}

/// A router's choice is discrete: where other weights are rounded to eight bits, tokens of models
/// as small as these take other experts, so that their logits have no bound.
bool has_experts(const RecordedGenerator& model) {
  return std::ranges::any_of(model.runner.infos, [](const auto& one) {
    return one.first.find(".experts.") != std::string::npos;
  });
}

TEST(GoldenTextBatches, TensorParallelRanksHaveTheEightBitWeightsOfOne) {
  struct EightBits {
    at::Tensor logits;
    Weights weights;
  };
  std::map<std::string, EightBits> alone;
  for_each_model([&](RecordedGenerator& model, const json::Value& record) {
    const std::vector<std::int64_t> text = a_text(record);
    const at::Tensor exact = logits_of(model, text, text.size());
    EightBits& mine = alone[model.name];
    mine.weights = narrow_weights(model);
    mine.logits = logits_of(model, text, text.size());
    if (has_experts(model)) return;
    EXPECT_LT(error_of(mine.logits, exact), kEightBits);
  });
  // Ranks, of which `row` have the same heads of keys and values.
  for (const auto& [ranks, row] : std::vector<std::pair<int, int>>{{2, 1}, {4, 1}, {4, 2}}) {
    double largest = 0.0;
    comm::run_threads(mesh::Mesh({.tp_row = row, .tp_col = ranks / row}), [&](comm::World& world) {
      for_each_model(
          [&](RecordedGenerator& model, const json::Value& record) {
            const EightBits& whole = alone.at(model.name);
            const std::vector<std::int64_t> text = a_text(record);
            for (const auto& [name, weight] : narrow_weights(model)) {
              const auto& [codes, scales] = whole.weights.at(name);
              const ParamInfo& info = *model.runner.infos.at(name);
              EXPECT_TRUE(at::equal(weight.first, test::ModelRunner::held(info, codes))) << name;
              ASSERT_EQ(weight.second.defined(), scales.defined()) << name;
              if (!scales.defined()) continue;
              auto rows = info.shape;
              rows.back() = 1;
              const at::Tensor held =
                  test::ModelRunner::held(info, scales.view(rows).expand_as(codes));
              EXPECT_TRUE(at::equal(weight.second.view({-1, 1}),
                                    held.reshape({-1, held.size(-1)}).narrow(1, 0, 1)))
                  << name;
            }
            const double error = error_of(logits_of(model, text, text.size()), whole.logits);
            if (has_experts(model)) return;
            EXPECT_LT(error, kOtherSums);
            if (world.is_leader()) largest = std::max(largest, error);
          },
          {&world});
    });
    RecordProperty(
        "largest error of " + std::to_string(ranks) + " ranks in rows of " + std::to_string(row),
        std::to_string(largest));
  }
}

// The reference computes in fp32 with the values of the 8-bit codes, so that only the rounding of
// activations is between the two. Texts are several times longer than the windows of the models
// that have one.
TEST(GoldenTextBatches, EightBitWeightsChangeNoWindow) {
  int windows = 0;
  for_each_model([&](RecordedGenerator& model, const json::Value& record) {
    if (has_experts(model)) return;
    const std::vector<std::int64_t> text = a_text(record);
    const Weights weights = narrow_weights(model);
    RecordedGenerator wide(golden::folder() / "models" / model.name);
    wide.runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
      const auto& [codes, scales] = weights.at(info.name);
      const at::Tensor values = codes.to(at::kFloat).reshape({-1, codes.size(-1)});
      out.view(values.sizes()).copy_(scales.defined() ? values * scales.unsqueeze(1) : values);
    });
    const at::Tensor exact = logits_of(wide, text, text.size());

    EXPECT_LT(error_of(logits_of(model, text, text.size()), exact), kHiddenStates);
    EXPECT_LT(error_of(logits_of(model, text, 5), exact), kHiddenStates);

    const json::Value* const window = model.config.find("sliding_window");
    if (window == nullptr || window->is_null()) return;
    EXPECT_LT(2 * window->as_integer().value(), std::ssize(text));
    ++windows;
  });
  EXPECT_GE(windows, 1);
}

at::Tensor row_of(const std::vector<std::int32_t>& ids) {
  return at::tensor(std::vector<std::int64_t>(ids.begin(), ids.end()), at::kLong).view({1, -1});
}

/// The log-probability of `made` after `prompt`, from a forward of the whole text.
double log_probability(RecordedGenerator& model,
                       const std::vector<std::int32_t>& prompt,
                       const std::vector<std::int32_t>& made) {
  const auto& target = model.resolved.trunk.output.target;
  std::vector<std::int32_t> text = prompt;
  if (target) text = {static_cast<std::int32_t>(target->start_token)};
  const auto before = static_cast<std::int64_t>(text.size()) - 1;
  text.insert(text.end(), made.begin(), made.end());
  nn::Batch batch = test::make_batch(row_of(target ? prompt : text));
  if (target) batch.set("decoder_input_ids", row_of(text));
  nn::StepContext context(nn::Mode::Prefill, 1);
  context.want_logits = true;
  const at::Tensor logits_TV = model.runner.infer(batch, context).outputs.at("logits")[0];
  const auto count = static_cast<std::int64_t>(made.size());
  return at::log_softmax(logits_TV.to(at::kDouble), 1)
      .narrow(0, before, count)
      .gather(1, row_of(made).view({-1, 1}))
      .sum()
      .item<double>();
}

TEST(GoldenTextBatches, BeamsHaveTheScoresOfTheirTexts) {
  for_each_model([](RecordedGenerator& model, const json::Value& record) {
    engine::GenerateOptions options;
    options.max_new_tokens = 12;
    options.ignore_eos = true;
    options.beams = 4;
    options.length_penalty = 0.0;
    for (const json::Value& one : golden::at(record, "cases").items()) {
      const std::vector<std::int32_t> prompt = golden::ids_of(golden::at(one, "prompt"));

      const auto beams = model.generator.run_beams(prompt, options, options.beams);

      for (const auto& beam : beams) {
        EXPECT_EQ(std::ssize(beam.made.tokens), options.max_new_tokens);
        EXPECT_NEAR(beam.score, log_probability(model, prompt, beam.made.tokens), kScores);
      }
    }
  });
}

}  // namespace
}  // namespace tessera
