// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Models compared with the results of transformers in float64: logits, loss, every gradient, three
// AdamW steps, and greedy text.
#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>

#include "golden/golden.h"
#include "golden/hf_models.h"
#include "support/model_runner.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/engine/score.h"
#include "tessera/interop/weights.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_objective.h"
#include "tessera/parallel/tensor_rules.h"
#include "tessera/tensor/dtype.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using test::ModelRunner;

// How much a float32 program may differ, absolute: the library's own float32 run is within a fifth
// of each bound.
constexpr double kLogits = 5e-5, kGradients = 5e-5, kLoss = 1e-5, kAfterAdamW = 5e-5;
// Each update adds its rounding, and the choices of routers carry it on.
constexpr double kLossAfterAdamW = 3e-5;

/// The tensors of a file.
class Tensors {
 public:
  explicit Tensors(const fs::path& path) : file_(path) {}
  [[nodiscard]] bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  [[nodiscard]] at::Tensor operator[](const std::string& name) const {
    const auto* entry = file_.find(name);
    if (entry == nullptr) throw std::runtime_error("no " + name + " in " + file_.path().string());
    void* bytes = const_cast<std::byte*>(file_.bytes(*entry).data());
    return at::from_blob(bytes, entry->shape, at::TensorOptions(to_torch(entry->dtype))).clone();
  }
  /// Names that begin with `prefix`, without it.
  [[nodiscard]] std::vector<std::string> names(const std::string& prefix) const {
    std::vector<std::string> out;
    for (const auto& entry : file_.entries()) {
      if (entry.name.starts_with(prefix)) out.push_back(entry.name.substr(prefix.size()));
    }
    return out;
  }

 private:
  checkpoint::SafetensorsFile file_;
};

/// One folder, its model loaded.
struct Case {
  fs::path folder;  ///< folder of the recorded results
  Tensors expected;
  const models::Family& family;
  models::Resolved resolved;
  ModelRunner runner;
};

/// Returns the folder of the recorded results: a case that differs only in its files names the case
/// whose results it shares.
fs::path answers_of(const fs::path& folder) {
  const json::Value record = golden::read_json(folder / "case.json");
  const json::Value* same = record.find("same_as");
  return same == nullptr ? folder : folder.parent_path() / same->as_string();
}

/// Model types and variants that are not built, and why.
const std::map<std::string, std::string>& left_out() {
  static const std::map<std::string, std::string> all;
  return all;
}

/// Returns why the case is not run: an entry of left_out(); nullopt for a case that has to run.
std::optional<std::string> reason_to_skip(const fs::path& folder) {
  const json::Value config = golden::read_json(folder / "config.json");
  const std::string type = config.find("model_type")->as_string();
  if (!models::families().has(type)) {
    const auto entry = left_out().find(type);
    return entry == left_out().end() ? std::nullopt : std::optional(entry->second);
  }
  try {
    (void)models::options_from_hf(config);
  } catch (const Error& error) {
    const std::string what = error.what();
    for (const auto& [word, reason] : left_out())
      if (what.find('"' + word + '"') != std::string::npos) return reason;
  }
  return std::nullopt;
}

/// `length`: of the longest text, where it matters.
Case open(const fs::path& folder, comm::World* world, std::int64_t length = 0) {
  const json::Value config = golden::read_json(folder / "config.json");
  const models::Family& family = models::families().get(models::family_of_hf(config));
  models::Resolved resolved = golden::resolved_from_hf(config, length);
  ModelRunner runner(resolved.model, DType::F32, world, golden::even_stages(world, resolved.model));
  const models::WeightSource source = interop::weights_from_hf(folder, family, resolved);
  runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
    source(info, 0, info.numel(), out.data_ptr<float>());
  });
  return {answers_of(folder),
          Tensors(answers_of(folder) / "expected.safetensors"),
          family,
          std::move(resolved),
          std::move(runner)};
}

/// True if the ranks can share the layers of the model, on the mesh that the program would give
/// them: ranks cannot share a single head, and some share heads of keys and values.
bool can_be_shared(const fs::path& folder, const comm::World* world) {
  const int sharers = world == nullptr ? 1 : world->mesh().size(mesh::AxisSet::tp());
  if (sharers == 1) return true;
  const models::Resolved resolved =
      golden::resolved_from_hf(golden::read_json(folder / "config.json"));
  return resolved.num_heads >= sharers &&
         parallel::ranks_that_share_a_head(resolved.model, sharers) ==
             world->mesh().size(mesh::Axis::TpRow);
}

/// The folders of "models", and those of "packed": models with rows of several documents that do
/// not see each other.
std::vector<fs::path> folders() {
  std::vector<fs::path> out = golden::cases("models");
  if (fs::is_directory(golden::folder() / "packed"))
    std::ranges::copy(golden::cases("packed"), std::back_inserter(out));
  return out;
}

/// Calls check(case) for each folder that this program supports and returns their number. `world`:
/// the ranks that hold its layers between them.
template <class Check>
int count_cases(Check check, comm::World* world) {
  int count = 0;
  for (const fs::path& folder : folders()) {
    if (reason_to_skip(folder) || !can_be_shared(folder, world)) continue;
    SCOPED_TRACE(folder.filename().string());
    Case one = open(folder, world);
    check(one);
    ++count;
  }
  return count;
}

/// The same on one rank; no case is a failure.
template <class Check>
void for_each_case(Check check) {
  EXPECT_GT(count_cases(check, nullptr), 0) << "no model in " << golden::folder() / "models";
}

/// The same with check(case, world) on `stages` stages of `sharers` ranks each, every case on the
/// mesh that suits its heads of keys and values.
template <class Check>
void for_each_case_on_ranks(int stages, int sharers, Check check) {
  int count = 0;
  std::vector<mesh::Mesh::Sizes> meshes = {{.pp = stages, .tp_col = sharers}};
  if (sharers > 1) meshes.push_back({.pp = stages, .tp_row = sharers});
  for (const mesh::Mesh::Sizes& sizes : meshes) {
    comm::run_threads(mesh::Mesh(sizes), [&](comm::World& world) {
      const int here = count_cases([&](Case& one) { check(one, world); }, &world);
      if (world.rank() == 0) count += here;
    });
  }
  EXPECT_GT(count, 0) << "no model in " << golden::folder() / "models";
}

TEST(GoldenModels, AreAllRunOrLeftOutForAReason) {
  int run = 0;
  EXPECT_NO_THROW((void)golden::cases("packed"));
  for (const fs::path& folder : folders()) {
    SCOPED_TRACE(folder.filename().string());
    if (const auto reason = reason_to_skip(folder)) {
      std::cout << "left out: " << folder.filename().string() << ": " << *reason << "\n";
      continue;
    }
    EXPECT_TRUE(fs::exists(answers_of(folder) / "expected.safetensors"));
    EXPECT_FALSE(interop::weight_files(folder).empty());
    EXPECT_NO_THROW((void)models::options_from_hf(golden::read_json(folder / "config.json")));
    ++run;
  }
  std::cout << "ran " << run << " models\n";
  EXPECT_GT(run, 0);
}

TEST(GoldenModels, AreDescribedAlikeByTheKeysOfTransformers4And5) {
  for (const fs::path& folder : golden::cases("models")) {
    if (reason_to_skip(folder) || !fs::exists(folder / "config_v4.json")) continue;
    SCOPED_TRACE(folder.filename().string());
    EXPECT_EQ(
        golden::resolved_from_hf(golden::read_json(folder / "config_v4.json")).description.dump(),
        golden::resolved_from_hf(golden::read_json(folder / "config.json")).description.dump());
  }
}

/// Theirs are not shifted: label t belongs to token t and is compared with the logits of token t
/// - 1.
at::Tensor shifted(const at::Tensor& labels) {
  at::Tensor out = at::full_like(labels, -100);
  out.narrow(1, 0, labels.size(1) - 1).copy_(labels.narrow(1, 1, labels.size(1) - 1));
  return out;
}

/// True if the logits are of another text than the input.
bool answers(const Case& one) {
  return one.resolved.trunk.output.target.has_value();
}

/// The logits with those of padding, which are not compared, set to 0.
at::Tensor of_tokens(const Case& one, const at::Tensor& logits) {
  if (logits.dim() < 3 || answers(one) || !one.expected.has("input.attention_mask")) return logits;
  return logits.masked_fill(one.expected["input.attention_mask"].eq(0).unsqueeze(-1), 0.0);
}

/// The recorded inputs under the names of a batch: labels as the model's objective reads them.
nn::Batch batch_of(const Case& one) {
  const std::string& objective = one.resolved.objective.name;
  const at::Tensor labels = one.expected["input.labels"];
  nn::Batch batch;
  for (std::int64_t sample = 0; sample < labels.size(0); ++sample)
    batch.sample_ids.push_back(sample);
  for (const std::string& name : one.expected.names("input.")) {
    const at::Tensor input = one.expected["input." + name];
    if (name == "document_ids") continue;
    if (name == "position_ids") {  // positions begin again with each document and at each padding
      batch.set("document_starts", at::arange(input.size(1)) - input);
      continue;
    }
    const bool padding = name == "attention_mask" && input.eq(0).any().item<bool>();
    if (name != "labels" && (name != "attention_mask" || padding)) batch.set(name, input);
  }
  if (objective == "sequence_classification" || objective == "image_classification") {
    batch.set("label", labels);
  } else {
    batch.set("labels", objective == "causal_lm" ? shifted(labels) : labels);
  }
  return batch;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

models::ReadFloats reader_of(const at::Tensor& tensor) {
  return [held = tensor.to(at::kFloat).contiguous()](
             std::int64_t begin, std::int64_t end, float* out) {
    std::copy(held.data_ptr<float>() + begin, held.data_ptr<float>() + end, out);
  };
}

models::Parameters parameters_of(const Case& one) {
  models::Parameters out;
  for (const auto& [name, info] : one.runner.infos)
    out.push_back(info);
  return out;
}

/// A tensor of transformers, made from ours.
at::Tensor in_their_layout(const models::TheirTensor& theirs,
                           const std::map<std::string, at::Tensor>& ours) {
  at::Tensor out = at::zeros(theirs.shape);
  for (const models::TheirTensor::Part& part : theirs.parts) {
    copy_range(
        part.copy, 0, out.numel(), reader_of(ours.at(part.info->name)), out.data_ptr<float>());
  }
  return out;
}

/// The loss without the terms that balance experts, which evaluation does not include.
double cross_entropy_of(const Case& one) {
  const json::Value record = golden::read_json(one.folder / "case.json");
  const json::Value* const moe = record.find("moe");
  return moe != nullptr ? moe->find("cross_entropy")->as_double()
                        : one.expected["loss"].item<double>();
}

TEST(GoldenModels, GiveTheLogitsAndTheLoss) {
  for_each_case([](Case& one) {
    const nn::Batch batch = batch_of(one);
    nn::StepContext context(nn::Mode::Eval, 1);
    context.want_logits = true;

    const nn::Outcome out = one.runner.infer(batch, context);

    EXPECT_LT(largest_difference(of_tokens(one, out.outputs.at("logits")),
                                 of_tokens(one, one.expected["logits"])),
              kLogits);
    const double tokens = one.runner.instance().objective()->denominators(batch).at(0);
    EXPECT_NEAR(out.terms.at(0).sum.item<double>() / tokens, cross_entropy_of(one), kLoss);
  });
}

/// True if experts drop tokens of a whole text, and none where it grows by one token.
bool drops_in_whole_texts(const Case& one) {
  const json::Value* const moe = one.resolved.description.find("moe");
  return moe != nullptr && moe->find("expert_capacity") != nullptr;
}

/// A row of ids, without those at which `keep` is 0.
std::vector<std::int32_t> kept_ids(const at::Tensor& row, const at::Tensor& keep) {
  const at::Tensor ids = row.masked_select(keep.ne(0)).to(at::kInt).contiguous();
  return {ids.data_ptr<std::int32_t>(), ids.data_ptr<std::int32_t>() + ids.numel()};
}

TEST(GoldenModels, GiveTheLossAsTheLikelihoodOfAnswers) {
  int compared = 0;
  for_each_case([&](Case& one) {
    // Answers are scored as they are generated.
    if (!answers(one) || drops_in_whole_texts(one)) return;
    const at::Tensor sources = one.expected["input.input_ids"],
                     targets = one.expected["input.labels"];
    const at::Tensor mask = one.expected.has("input.attention_mask")
                                ? one.expected["input.attention_mask"]
                                : at::ones_like(sources);
    parallel::Executor executor(one.runner.instance(), {});
    double sum = 0, tokens = 0;
    for (std::int64_t row = 0; row < sources.size(0); ++row) {
      const auto made =
          engine::answer_log_probabilities(executor,
                                           one.resolved,
                                           kept_ids(sources[row], mask[row]),
                                           kept_ids(targets[row], targets[row].ge(0)));
      sum += std::accumulate(made.begin(), made.end(), 0.0);
      tokens += static_cast<double>(made.size());
    }
    EXPECT_NEAR(-sum / tokens, cross_entropy_of(one), kLoss);
    ++compared;
  });
  EXPECT_GT(compared, 0);
}

TEST(GoldenModels, GiveTheLogitsOfShortTextsForAShortLength) {
  for (const fs::path& folder : golden::cases("models")) {
    const json::Value config = golden::read_json(folder / "config.json");
    if (reason_to_skip(folder) || !golden::depends_on_length(config)) continue;
    SCOPED_TRACE(folder.filename().string());
    const Tensors expected(answers_of(folder) / "expected.safetensors");
    if (!expected.has("short.logits")) continue;
    const at::Tensor ids = expected["short.input_ids"];
    Case one = open(folder, nullptr, ids.size(1));
    nn::StepContext context(nn::Mode::Eval, 1);
    context.want_logits = true;

    const nn::Outcome out = one.runner.infer(test::make_batch(ids), context);

    EXPECT_LT(largest_difference(out.outputs.at("logits"), expected["short.logits"]), kLogits);
  }
}

TEST(GoldenModels, GiveEveryGradient) {
  for_each_case([](Case& one) {
    const double loss = one.runner.train(batch_of(one));

    EXPECT_NEAR(loss, one.expected["loss"].item<double>(), kLoss);
    std::size_t compared = 0;
    for (const models::TheirTensor& theirs :
         models::their_tensors(one.family.weight_map, parameters_of(one))) {
      if (!one.expected.has("grad." + theirs.name)) continue;
      const at::Tensor grad = in_their_layout(theirs, one.runner.grads);
      EXPECT_LT(largest_difference(grad, one.expected["grad." + theirs.name]), kGradients)
          << theirs.name;
      ++compared;
    }
    const auto recorded = one.expected.names("grad.");
    EXPECT_EQ(compared, recorded.size());
  });
}

/// A parameter of ours assembled from recorded tensors, NaN where none was recorded, and the names
/// of the recorded tensors.
struct Recorded {
  at::Tensor whole;
  std::set<std::string> tensors = {};
  bool complete = true;
};
Recorded in_our_layout(const Case& one,
                       const models::Composition& composition,
                       const std::string& prefix) {
  Recorded out{at::full(composition.shape(), std::numeric_limits<float>::quiet_NaN())};
  for (const models::Composition::Part& part : composition.parts()) {
    if (!one.expected.has(prefix + part.tensor)) {
      out.complete = false;
      continue;
    }
    out.tensors.insert(part.tensor);
    copy_range(composition.copy_of(part),
               0,
               out.whole.numel(),
               reader_of(one.expected[prefix + part.tensor]),
               out.whole.data_ptr<float>());
  }
  return out;
}

/// The recorded AdamW steps: losses, and of what this rank holds the parameters after them. How
/// many of these were compared.
std::size_t expect_adamw_steps(Case& one) {
  const json::Value record = golden::read_json(one.folder / "case.json");
  const json::Value* adamw = record.find("adamw");
  if (adamw == nullptr) return 0;
  const auto number = [&](const char* key) { return adamw->find(key)->as_double(); };
  const auto betas = golden::numbers(*adamw->find("betas")),
             losses = golden::numbers(*adamw->find("losses"));
  const nn::Batch batch = batch_of(one);
  const auto steps = *adamw->find("steps")->as_integer();
  EXPECT_EQ(static_cast<std::int64_t>(losses.size()), steps + 1);

  for (std::int64_t step = 1; step <= steps; ++step) {
    EXPECT_NEAR(one.runner.train(batch),
                losses.at(static_cast<std::size_t>(step - 1)),
                step == 1 ? kLoss : kLossAfterAdamW)
        << "before step " << step;
    one.runner.update({.lr = number("lr"),
                       .beta1 = betas.at(0),
                       .beta2 = betas.at(1),
                       .eps = number("eps"),
                       .weight_decay = number("weight_decay"),
                       .step = step});
  }

  EXPECT_NEAR(one.runner.train(batch), losses.back(), kLossAfterAdamW) << "after the last step";
  std::size_t compared = 0;
  for (const auto& [name, info] : one.runner.infos) {
    const models::Composition composition = one.family.weight_map.compose(*info);
    const Recorded recorded = in_our_layout(one, composition, "after.");
    if (recorded.tensors.empty()) continue;
    const at::Tensor ours = ModelRunner::held(*info, one.runner.weights.at(name)),
                     theirs = ModelRunner::held(*info, recorded.whole);
    EXPECT_LT(largest_difference(ours, at::where(theirs.isnan(), ours, theirs)), kAfterAdamW)
        << name;
    compared += recorded.tensors.size();
  }
  return compared;
}

TEST(GoldenModels, TakeThreeAdamWSteps) {
  for_each_case(
      [](Case& one) { EXPECT_EQ(expect_adamw_steps(one), one.expected.names("after.").size()); });
}

std::vector<std::int64_t> ids(const json::Value& list) {
  std::vector<std::int64_t> out;
  for (const json::Value& id : list.items())
    out.push_back(*id.as_integer());
  return out;
}

/// Every recorded prompt with and without a cache, and the one that an end token stops.
void expect_continuations(Case& one) {
  if (!fs::exists(one.folder / "generation.json")) return;
  const json::Value record = golden::read_json(one.folder / "generation.json");
  const std::int64_t count = *record.find("new_tokens")->as_integer(),
                     vocab = one.resolved.vocab_size;

  const auto& target = one.resolved.trunk.output.target;
  const bool whole = !drops_in_whole_texts(one);
  const auto made = [&](const std::vector<std::int64_t>& prompt, bool cached, std::int64_t stop) {
    if (!target) return one.runner.greedy(prompt, count, cached, vocab, stop);
    return one.runner.greedy_answer(prompt, target->start_token, count, cached, vocab, stop);
  };
  for (const json::Value& text : record.find("cases")->items()) {
    const auto prompt = ids(*text.find("prompt")), expected = ids(*text.find("greedy"));
    EXPECT_EQ(made(prompt, /*cached=*/true, /*stop=*/-1), expected);
    if (whole) {
      EXPECT_EQ(made(prompt, /*cached=*/false, /*stop=*/-1), expected);
    }
  }
  if (const json::Value* stop = record.find("stop")) {
    const std::int64_t end = *stop->find("eos_token_id")->as_integer();
    EXPECT_EQ(made(ids(*stop->find("prompt")), /*cached=*/true, end), ids(*stop->find("greedy")));
  }
}

TEST(GoldenModels, ContinuePromptsGreedily) {
  for_each_case(expect_continuations);
}

/// Everything recorded of a case, on ranks that hold the model between them.
void expect_recorded(Case& one, comm::World& world) {
  const nn::Batch batch = batch_of(one);
  nn::StepContext context(nn::Mode::Eval, 1);
  context.want_logits = true;

  const nn::Outcome out = one.runner.infer(batch, context);
  const double loss = one.runner.train(batch);

  if (out.outputs.contains("logits")) {  // the stage that has the objective
    EXPECT_LT(largest_difference(of_tokens(one, out.outputs.at("logits")),
                                 of_tokens(one, one.expected["logits"])),
              kLogits);
  }
  EXPECT_NEAR(loss, one.expected["loss"].item<double>(), kLoss);
  for (const auto& [name, info] : one.runner.infos) {
    const Recorded recorded = in_our_layout(one, one.family.weight_map.compose(*info), "grad.");
    if (!recorded.complete) continue;
    EXPECT_LT(
        largest_difference(one.runner.grads.at(name), ModelRunner::held(*info, recorded.whole)),
        kGradients)
        << name;
  }
  expect_continuations(one);
  // Sum over all stages; a tensor that two stages use counts twice.
  const std::vector<double> compared =
      world.all_reduce(world.group({mesh::Axis::Pp}),
                       {static_cast<double>(expect_adamw_steps(one))},
                       comm::Op::Sum,
                       TESSERA_HERE("compared parameters"));
  EXPECT_GE(compared.front(), static_cast<double>(one.expected.names("after.").size()));
}

TEST(GoldenModels, GiveTheSameOnTwoTensorParallelRanks) {
  for_each_case_on_ranks(1, 2, [](Case& one, comm::World& world) {
    expect_recorded(one, world);
    EXPECT_TRUE(std::ranges::any_of(one.runner.infos,
                                    [](const auto& named) { return named.second->cut(); }));
  });
}

TEST(GoldenModels, GiveTheSameOnTwoStages) {
  for_each_case_on_ranks(2, 1, [](Case& one, comm::World& world) {
    expect_recorded(one, world);
    EXPECT_LT(one.runner.infos.size(), one.runner.instance().places().size());
  });
}

TEST(GoldenModels, GiveTheSameOnTwoStagesOfTwoTensorParallelRanks) {
  for_each_case_on_ranks(2, 2, expect_recorded);
}

}  // namespace
}  // namespace tessera
