// SPDX-License-Identifier: Apache-2.0
// Other programs' checkpoints, constructed by hand: which data is read from them, and which are
// refused.
#include "tessera/interop/foreign.h"

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "interop/foreign_support.h"
#include "interop/torch/torch_bytes.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/interop/foreign_write.h"
#include "tessera/interop/torch/file.h"
#include "tessera/interop/torch/value.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
namespace op = test::op;
using test::ForeignCheckpoints;
using test::values_of;
using Shape = std::vector<std::int64_t>;
using Value = std::function<float(std::int64_t index)>;

checkpoint::StreamedTensor floats(const std::string& name, Shape shape, Value value) {
  const auto read = [value](std::int64_t begin, std::int64_t end, std::byte* out) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float v = value(i);
      std::memcpy(out + (i - begin) * 4, &v, 4);
    }
  };
  return {name, DType::F32, std::move(shape), read, {}};
}

std::map<std::string, checkpoint::StreamedTensor> by_name(
    const std::vector<checkpoint::StreamedTensor>& tensors) {
  std::map<std::string, checkpoint::StreamedTensor> out;
  for (const checkpoint::StreamedTensor& tensor : tensors)
    out.emplace(tensor.name, tensor);
  return out;
}

/// A training state of two parameters, one of them tied, whose values are functions of name and
/// index.
Foreign small_training() {
  Foreign out;
  out.step = 7;
  out.skipped = 2;
  out.samples = 28;
  out.lr = 0.00375;
  out.weights = {floats("wte.weight", {3, 2}, [](auto i) { return 1.0F + static_cast<float>(i); }),
                 floats("h.bias", {5}, [](auto i) { return -static_cast<float>(i); })};
  out.weights[0].aliases = {"lm_head.weight"};
  for (const char* state : {"exp_avg", "exp_avg_sq"}) {
    const float base = state == std::string("exp_avg") ? 10.0F : 20.0F;
    for (const checkpoint::StreamedTensor& weight : out.weights)
      out.state[state].push_back(floats(
          weight.name, weight.shape, [base](auto i) { return base + static_cast<float>(i); }));
  }
  return out;
}

void expect_same(const Foreign& read, const Foreign& written) {
  EXPECT_EQ(read.step - read.skipped, written.step - written.skipped);
  EXPECT_EQ(read.lr, written.lr);
  const auto weights = by_name(read.weights);
  ASSERT_EQ(weights.size(), written.weights.size());
  for (const checkpoint::StreamedTensor& tensor : written.weights) {
    EXPECT_EQ(weights.at(tensor.name).shape, tensor.shape);
    EXPECT_EQ(weights.at(tensor.name).aliases, tensor.aliases);
    EXPECT_EQ(values_of(weights.at(tensor.name)), values_of(tensor)) << tensor.name;
  }
  for (const auto& [state, tensors] : written.state) {
    const auto found = by_name(read.state.at(state));
    for (const checkpoint::StreamedTensor& tensor : tensors)
      EXPECT_EQ(values_of(found.at(tensor.name)), values_of(tensor)) << state << tensor.name;
  }
}

TEST_F(ForeignCheckpoints, AUniversalCheckpointReadsBack) {
  fs::create_directory(path("ds"));

  write_universal(path("ds"), small_training(), [](auto) {});

  const Foreign read = *open_foreign(path("ds"));
  expect_same(read, small_training());
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.samples, 28);
  EXPECT_EQ(files::read(path("ds/latest_universal")), "global_step7");
  expect_same(*open_foreign(path("ds/global_step7")), small_training());
}

TEST_F(ForeignCheckpoints, AUniversalCheckpointNeedsMomentsAndNamesOfFolders) {
  Foreign bare = small_training(), odd = small_training();
  bare.state.clear();
  odd.weights[0].name = "../out";
  for (auto& [state, tensors] : odd.state)
    tensors[0].name = "../out";
  fs::create_directory(path("a"));
  fs::create_directory(path("b"));

  EXPECT_THROW(write_universal(path("a"), bare, [](auto) {}), Error);
  EXPECT_THROW(write_universal(path("b"), odd, [](auto) {}), Error);
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(ForeignCheckpoints, AUniversalCheckpointWithAHoleIsRefused) {
  fs::create_directory(path("ds"));
  write_universal(path("ds"), small_training(), [](auto) {});
  fs::remove(path("ds/global_step7/zero/h.bias/fp32.pt"));

  refused(path("ds"), "has no fp32.pt");
}

TEST_F(ForeignCheckpoints, ATrainingLoopsPairReadsBack) {
  write_torch_loop(
      path("model_000007.pth"), path("optimizer_000007.pth"), small_training(), [](auto) {});

  const Foreign of_file = *open_foreign(path("model_000007.pth"));
  const Foreign of_folder = *open_foreign(dir.path());

  expect_same(of_file, small_training());
  expect_same(of_folder, small_training());
  EXPECT_EQ(of_file.step, 5);
  EXPECT_EQ(of_file.samples, std::nullopt);
}

TEST_F(ForeignCheckpoints, AnOptimizerOfAnotherModelIsRefused) {
  Foreign other = small_training();
  other.weights.pop_back();
  for (auto& [name, tensors] : other.state)
    tensors.pop_back();
  write_torch_loop(
      path("model_000001.pth"), path("optimizer_000001.pth"), small_training(), [](auto) {});
  write_torch_loop(path("x"), path("y"), other, [](auto) {});
  fs::rename(path("y"), path("optimizer_000001.pth"));

  refused(path("model_000001.pth"), "is of 1 parameters, and the model has 2");
}

/// Writes the optimizer file of a pair with one parameter, with the given state and group.
void write_pair(const fs::path& folder,
                const std::vector<std::pair<std::string, TorchValue>>& state,
                const std::vector<std::pair<std::string, TorchValue>>& group) {
  const auto ones = [](const std::string& name) {
    return TorchValue::tensor(floats(name, {2}, [](auto) { return 1.0F; }));
  };
  fs::remove(folder / "model_000003.pth");
  fs::remove(folder / "optimizer_000003.pth");
  write_torch_file(folder / "model_000003.pth", TorchValue::ordered({{"w", ones("w")}}));
  std::vector<TorchValue::Item> kept = {{"exp_avg", ones("m")}, {"exp_avg_sq", ones("v")}};
  kept.insert(kept.end(), state.begin(), state.end());
  std::vector<TorchValue::Item> one = {{"params", TorchValue::list({TorchValue::integer(0)})}};
  one.insert(one.end(), group.begin(), group.end());
  write_torch_file(
      folder / "optimizer_000003.pth",
      TorchValue::dict({{"state", TorchValue::dict({{"0", TorchValue::dict(kept)}}, true)},
                        {"param_groups", TorchValue::list({TorchValue::dict(one)})}}));
}

TEST_F(ForeignCheckpoints, AnOptimizerThatKeepsMoreThanIsReadIsRefusedByName) {
  const TorchValue tensor = TorchValue::tensor(floats("x", {2}, [](auto) { return 1.0F; }));
  const TorchValue yes = TorchValue::of(json::Value::boolean(true)),
                   no = TorchValue::of(json::Value::boolean(false));
  write_pair(dir.path(), {}, {{"amsgrad", no}, {"maximize", no}});
  EXPECT_EQ(open_foreign(dir.path())->state.size(), 2U);

  write_pair(dir.path(), {{"max_exp_avg_sq", tensor}}, {});
  refused(dir.path(), "keeps \"max_exp_avg_sq\"");
  write_pair(dir.path(), {}, {{"amsgrad", yes}});
  refused(dir.path(), "has amsgrad");
  write_pair(dir.path(), {}, {{"maximize", yes}});
  refused(dir.path(), "has maximize");
}

TEST_F(ForeignCheckpoints, ATrainingLoopOfNAdamGoesWithoutTheProductThatItsStepGives) {
  const TorchValue decay = TorchValue::of(json::Value::number(0.004));
  write_pair(dir.path(),
             {{"step", TorchValue::tensor(floats("step", {}, [](auto) { return 5.0F; }))},
              {"mu_product", TorchValue::tensor(floats("p", {}, [](auto) { return 0.0185F; }))}},
             {{"momentum_decay", decay}});

  const Foreign read = open_foreign(dir.path()).value();

  EXPECT_EQ(read.step, 5);
  EXPECT_EQ(read.state.size(), 2U);
  EXPECT_EQ(read.state.count("mu_product"), 0U);
  EXPECT_EQ(at_path(read.config, "optimizer.type")->as_string(), "NAdam");
  EXPECT_EQ(number_at(read.config, "optimizer.params.momentum_decay"), 0.004);
}

TEST_F(ForeignCheckpoints, ATrainingLoopsGroupIsThatOfItsOptimizer) {
  Foreign training = small_training();
  const auto group_of = [&](const char* optimizer, const std::vector<std::string>& states) {
    training.config = json::parse(optimizer, "config");
    std::map<std::string, std::vector<checkpoint::StreamedTensor>> kept;
    for (const std::string& state : states)
      kept.emplace(state, small_training().state.begin()->second);
    training.state = std::move(kept);
    fs::remove(path("m"));
    fs::remove(path("o"));
    write_torch_loop(path("m"), path("o"), training, [](auto) {});
    return *at_path(read_torch_file(path("o")).values, "param_groups.0");
  };

  const json::Value sgd =
      group_of(R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.9, "nesterov": true}}})",
               {"momentum_buffer"});
  const json::Value adagrad = group_of(R"({"optimizer": {"type": "Adagrad"}})", {"sum"});
  const json::Value adam =
      group_of(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})",
               {"exp_avg", "exp_avg_sq"});

  EXPECT_EQ(number_at(sgd, "momentum"), 0.9);
  EXPECT_EQ(at_path(sgd, "nesterov")->as_bool(), true);
  EXPECT_EQ(sgd.find("betas"), nullptr);
  EXPECT_EQ(number_at(sgd, "lr"), training.lr);
  EXPECT_EQ(number_at(adagrad, "initial_accumulator_value"), 0.0);
  EXPECT_EQ(adagrad.find("betas"), nullptr);
  EXPECT_EQ(at_path(adam, "decoupled_weight_decay")->as_bool(), false);
  EXPECT_THROW(group_of(R"({"optimizer": {"type": "Lion"}})", {"exp_avg"}), Error);
  EXPECT_THROW(group_of(R"({"optimizer": {"type": "Lamb"}})", {"exp_avg", "exp_avg_sq"}), Error);
}

TEST_F(ForeignCheckpoints, WhatATrainingStateAsksToCallIsRefused) {
  const fs::path file = path("iter/mp_rank_00/model_optim_rng.pt");
  const std::string touch = op::tuple({op::text("touch " + path("owned").string())});
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"os", "system"},
                                                        {"posix", "system"},
                                                        {"builtins", "eval"},
                                                        {"builtins", "getattr"},
                                                        {"subprocess", "Popen"},
                                                        {"importlib", "import_module"},
                                                        {"pickle", "loads"}}) {
    fs::create_directories(file.parent_path());
    files::write_atomic(file,
                        test::torch_zip(test::pickle_of(
                            op::dict({{"args", op::global(module, name) + touch + "R"}}))));
    refused(path("iter"), fmt::format("asks for \"{}.{}\"", module, name));
  }
  EXPECT_FALSE(fs::exists(path("owned")));
}

TEST_F(ForeignCheckpoints, ObjectsOfTrainingStatesAreDescribed) {
  const std::string scaler = op::global("deepspeed.runtime.fp16.loss_scaler", "LossScaler") +
                             ")\x81" + op::dict({{"cur_scale", op::integer(4)}}) + "b";
  const std::string stage = op::global("deepspeed.runtime.zero.config", "ZeroStageEnum") +
                            op::tuple({op::integer(2)}) + "R";
  files::write_atomic(path("x.pt"),
                      test::torch_zip(test::pickle_of(
                          op::dict({{"scaler", scaler}, {"stage", stage}, {"none", "N"}}))));

  const json::Value values = read_torch_file(path("x.pt")).values;

  EXPECT_EQ(at_path(values, "scaler.class")->as_string(),
            "deepspeed.runtime.fp16.loss_scaler.LossScaler");
  EXPECT_EQ(integer_at(values, "scaler.state.cur_scale", 0), 4);
  EXPECT_EQ(integer_at(values, "stage.arguments.0", 0), 2);
  EXPECT_TRUE(at_path(values, "none")->is_null());
}

}  // namespace
}  // namespace tessera::interop
