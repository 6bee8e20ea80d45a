// SPDX-License-Identifier: Apache-2.0
// The pair of files of a training loop: assignment of numbers to parameters, the rule, the number
// of updates.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "interop/foreign_support.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/foreign_write.h"
#include "tessera/interop/torch/file.h"
#include "tessera/interop/torch/value.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using test::values_of;
using ::testing::HasSubstr;
using Names = std::vector<std::string>;

template <class T>
checkpoint::StreamedTensor constant(const std::string& name,
                                    DType dtype,
                                    T value,
                                    std::int64_t count) {
  const auto read = [value](std::int64_t begin, std::int64_t end, std::byte* out) {
    for (std::int64_t i = begin; i < end; ++i)
      std::memcpy(out + (i - begin) * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
  };
  return {name, dtype, {count}, read, {}};
}

/// Returns weights of these names, of one shape so that only their order distinguishes them. The
/// first has moments of 10 and 110, the second of 11 and 111, ...
Foreign training_of(const Names& names) {
  Foreign out;
  out.path = "somewhere";
  out.step = 5;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto value = static_cast<float>(i);
    out.weights.push_back(constant(names[i], DType::F32, value, 2));
    out.state["exp_avg"].push_back(constant(names[i], DType::F32, value + 10, 2));
    out.state["exp_avg_sq"].push_back(constant(names[i], DType::F32, value + 110, 2));
  }
  return out;
}

class TorchLoop : public test::ForeignCheckpoints {
 protected:
  void write(const Foreign& training) {
    fs::remove(path("model_000005.pth"));
    fs::remove(path("optimizer_000005.pth"));
    write_torch_loop(path("model_000005.pth"), path("optimizer_000005.pth"), training, [](auto) {});
  }
  [[nodiscard]] TorchContents optimizer() const {
    return read_torch_file(path("optimizer_000005.pth"));
  }
  /// Returns the names in the model's file, and for each the first element of its numbered exp_avg.
  [[nodiscard]] std::vector<std::pair<std::string, float>> numbered() const {
    std::vector<std::pair<std::string, float>> out;
    const TorchContents state = optimizer();
    const Named tensors(state.tensors);
    for (const Weight& weight : open_torch_file(path("model_000005.pth"))) {
      const Weight* moment = tensors.find(fmt::format("state.{}.exp_avg", out.size()));
      float value = -1;
      if (moment != nullptr) moment->copy(0, 1, reinterpret_cast<std::byte*>(&value));
      out.emplace_back(weight.name, value);
    }
    return out;
  }
};

TEST_F(TorchLoop, NumbersAFamilysParametersAsItsModuleDoesWhateverOrderTheyCameIn) {
  // In alphabetical order: layer 10 comes before layer 2, and a bias before its weight.
  Foreign training = training_of({"transformer.h.10.ln_1.weight",
                                  "transformer.h.2.attn.c_proj.bias",
                                  "transformer.h.2.attn.c_proj.weight",
                                  "transformer.h.2.ln_1.weight",
                                  "transformer.ln_f.weight",
                                  "transformer.wpe.weight",
                                  "transformer.wte.weight"});

  order_by_module(training);
  write(training);

  const std::vector<std::pair<std::string, float>> expected = {
      {"transformer.wte.weight", 16},
      {"transformer.wpe.weight", 15},
      {"transformer.h.2.ln_1.weight", 13},
      {"transformer.h.2.attn.c_proj.weight", 12},
      {"transformer.h.2.attn.c_proj.bias", 11},
      {"transformer.h.10.ln_1.weight", 10},
      {"transformer.ln_f.weight", 14}};
  EXPECT_EQ(numbered(), expected);
}

TEST_F(TorchLoop, NumbersAnyModelAsItsModuleWasListedAndBuffersNotAtAll) {
  Foreign training = training_of({"a", "b", "mask", "c"});
  training.parameters = {"c", "a", "b"};
  training.weights[1].aliases = {"head"};
  for (auto& [state, tensors] : training.state)
    std::erase_if(tensors, [](const auto& tensor) { return tensor.name == "mask"; });

  order_by_module(training);
  write(training);

  const json::Value values = optimizer().values;
  EXPECT_EQ(at_path(values, "param_groups.0.params")->items().size(), 3U);
  const auto read = numbered();
  ASSERT_EQ(read.size(), 5U);  // including the second name of b
  EXPECT_EQ(read[0], (std::pair<std::string, float>("c", 13)));
  EXPECT_EQ(read[1], (std::pair<std::string, float>("a", 10)));
  EXPECT_EQ(read[2].first, "b");
  EXPECT_EQ(read[2].second, 11);
}

TEST_F(TorchLoop, OfAModelWhoseOrderNobodyKnowsIsRefused) {
  Foreign training = training_of({"encoder.weight", "transformer.wte.weight"});

  const Error error = test::error_of([&] { order_by_module(training); });

  EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
  EXPECT_THAT(error.text(), HasSubstr("\"encoder.weight\" among its module's parameters"));
  EXPECT_THAT(error.text(), HasSubstr("--to deepspeed-universal"));
}

TEST_F(TorchLoop, GivesEachParameterItsOwnStateWhereOneHasNone) {
  Foreign training = training_of({"a", "b", "c"});
  for (auto& [state, tensors] : training.state)
    std::erase_if(tensors, [](const auto& tensor) { return tensor.name == "a"; });

  write(training);

  const std::vector<std::pair<std::string, float>> expected = {{"a", -1}, {"b", 11}, {"c", 12}};
  EXPECT_EQ(numbered(), expected);
  EXPECT_EQ(at_path(optimizer().values, "state")->members().size(), 2U);
  const Foreign read = open_foreign(dir.path()).value();
  EXPECT_EQ(read.step, 5);  // the step of the second parameter
  ASSERT_EQ(read.state.at("exp_avg").size(), 2U);
  EXPECT_EQ(read.state.at("exp_avg")[0].name, "b");
  EXPECT_EQ(values_of(read.state.at("exp_avg")[1]), (std::vector<float>{12, 12}));
}

TEST_F(TorchLoop, WithAPartOfAParametersStateIsRefused) {
  Foreign training = training_of({"a", "b"});
  training.state["exp_avg_sq"].pop_back();

  const Error error = test::error_of([&] { write(training); });

  EXPECT_THAT(error.text(), HasSubstr("keeps 1 of 2 states of \"b\""));
  EXPECT_FALSE(fs::exists(path("model_000005.pth")));
}

TEST_F(TorchLoop, AnAdamStaysAnAdamAndAnAdamWAnAdamW) {
  for (const bool decoupled : {false, true}) {
    Foreign training = training_of({"a"});
    training.config = json::parse(
        fmt::format(R"({{"optimizer": {{"type": "Adam", "params": {{"adam_w_mode": {}}}}}}})",
                    decoupled),
        "config");
    write(training);

    const Foreign read = open_foreign(dir.path()).value();
    write(read);

    EXPECT_EQ(at_path(read.config, "optimizer.type")->as_string(), decoupled ? "AdamW" : "Adam");
    EXPECT_EQ(at_path(read.config, "optimizer.params.adam_w_mode")->as_bool(), decoupled);
    EXPECT_EQ(at_path(optimizer().values, "param_groups.0.decoupled_weight_decay")->as_bool(),
              decoupled);
  }
}

TEST_F(TorchLoop, IfAdamAndAdamWCannotBeDistinguishedTheLoaderDecides) {
  write(training_of({"a"}));

  const Foreign read = open_foreign(dir.path()).value();
  write(read);

  EXPECT_EQ(at_path(read.config, "optimizer.type"), nullptr);
  EXPECT_EQ(at_path(optimizer().values, "param_groups.0.decoupled_weight_decay"), nullptr);
}

/// Writes the pair of files for one parameter whose group has these keys in addition to lr and
/// params, at this step.
void write_by_hand(const fs::path& folder,
                   const std::vector<TorchValue::Item>& keys,
                   const TorchValue& step) {
  fs::remove(folder / "model_000005.pth");
  fs::remove(folder / "optimizer_000005.pth");
  const auto two = [](const char* name) {
    return TorchValue::tensor(constant(name, DType::F32, 1.0F, 2));
  };
  std::vector<TorchValue::Item> group = {{"params", TorchValue::list({TorchValue::integer(0)})}};
  group.insert(group.end(), keys.begin(), keys.end());
  const TorchValue state =
      TorchValue::dict({{"step", step}, {"exp_avg", two("m")}, {"exp_avg_sq", two("v")}});
  write_torch_file(folder / "model_000005.pth", TorchValue::ordered({{"w", two("w")}}));
  write_torch_file(
      folder / "optimizer_000005.pth",
      TorchValue::dict({{"state", TorchValue::dict({{"0", state}}, /*numbered=*/true)},
                        {"param_groups", TorchValue::list({TorchValue::dict(group)})}}));
}

TEST_F(TorchLoop, OfAnotherRuleWithAdamsMomentsIsNotWrittenAsAdams) {
  const TorchValue no = TorchValue::of(json::Value::boolean(false)), step = TorchValue::integer(1);
  const std::vector<std::pair<std::string, std::vector<TorchValue::Item>>> rules = {
      {"RAdam", {{"decoupled_weight_decay", no}}},
      {"NAdam", {{"decoupled_weight_decay", no}, {"momentum_decay", step}}}};
  for (const auto& [name, keys] : rules) {
    write_by_hand(dir.path(), keys, step);

    const Foreign read = open_foreign(dir.path()).value();
    const Error error = test::error_of([&] { write(read); });

    EXPECT_EQ(at_path(read.config, "optimizer.type")->as_string(), name);
    EXPECT_THAT(error.text(), HasSubstr(fmt::format("an optimizer \"{}\"", name)));
  }
}

TEST_F(TorchLoop, CountsUpdatesInEveryTypeThatTorchDoes) {
  for (const TorchValue& step :
       {TorchValue::integer(7),
        TorchValue::of(json::Value::number(7.0)),
        TorchValue::tensor(constant("s", DType::F32, 7.0F, 1)),
        TorchValue::tensor(constant("s", DType::F64, 7.0, 1)),
        TorchValue::tensor(constant("s", DType::I64, std::int64_t{7}, 1))}) {
    write_by_hand(dir.path(), {}, step);

    EXPECT_EQ(open_foreign(dir.path())->step, 7);
  }
}

TEST_F(TorchLoop, WithAnInvalidCountOfUpdatesIsRefused) {
  const auto of_float = [](float value) {
    return TorchValue::tensor(constant("s", DType::F32, value, 1));
  };
  const std::vector<std::pair<TorchValue, std::string>> cases = {
      {of_float(std::numeric_limits<float>::quiet_NaN()),
       "is nan, which is not a number of updates"},
      {of_float(std::numeric_limits<float>::infinity()),
       "is inf, which is not a number of updates"},
      {of_float(-5), "is -5, which is not a number of updates"},
      {of_float(2.5), "is 2.5, which is not a number of updates"},
      {of_float(1e19F), "which is not a number of updates"},
      {of_float(0x1p53F), "which is not a number of updates"},
      {TorchValue::integer(-5), "is -5, which is not a number of updates"},
      {TorchValue::integer(std::int64_t{1} << 53),
       "is 9007199254740992, which is not a number of updates"},
      {TorchValue::tensor(constant("s", DType::I64, std::int64_t{-1}, 1)), "is -1, which"},
      {TorchValue::tensor(constant("s", DType::I32, 5, 1)), "is a tensor of I32, which"},
      {TorchValue::tensor(constant("s", DType::F32, 5.0F, 2)), "is a tensor of shape [2], which"}};
  for (const auto& [step, reason] : cases) {
    SCOPED_TRACE(reason);
    write_by_hand(dir.path(), {}, step);

    refused(dir.path(), "optimizer_000005.pth: state.0.step is ");
    refused(dir.path(), reason);
  }
}

TEST_F(TorchLoop, WhoseParametersCountUnlikeUpdatesIsRefusedByTwoOfThem) {
  Foreign training = training_of({"a", "b", "c"});
  training.began["b"] = 3;
  write(training);

  refused(dir.path(), "\"a\" has 5 updates and \"b\" has 2");
  refused(dir.path(), "optimizer_000005.pth");

  fs::create_directory(path("ds"));
  write_universal(path("ds"), training_of({"a", "b"}), [](auto) {});
  const fs::path step = path("ds/global_step5/zero/b/step.pt");
  fs::remove(step);
  write_torch_file(step, TorchValue::integer(4));

  refused(path("ds"), "\"a\" has 5 updates and \"b\" has 4");
}

TEST_F(TorchLoop, OfAUniversalCheckpointIsRefusedLikewise) {
  fs::create_directory(path("ds"));
  write_universal(path("ds"), training_of({"a"}), [](auto) {});
  const fs::path step = path("ds/global_step5/zero/a/step.pt");
  for (const TorchValue& value :
       {TorchValue::tensor(constant("s", DType::F32, std::numeric_limits<float>::quiet_NaN(), 1)),
        TorchValue::tensor(constant("s", DType::F32, 1e19F, 1)),
        TorchValue::integer(-5)}) {
    fs::remove(step);
    write_torch_file(step, value);

    refused(path("ds"), "which is not a number of updates");
    refused(path("ds"), "step.pt");
  }
  fs::remove(step);
  write_torch_file(step, TorchValue::tensor(constant("s", DType::F64, 4.0, 1)));

  EXPECT_EQ(open_foreign(path("ds"))->skipped, 1);
}

}  // namespace
}  // namespace tessera::interop
