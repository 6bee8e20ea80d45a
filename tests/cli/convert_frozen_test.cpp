// SPDX-License-Identifier: Apache-2.0
// tessera convert of a training that kept optimizer state for only a part of its parameters, or for
// some since a later step than for others.
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <span>
#include <string>
#include <vector>

#include "cli/convert_support.h"
#include "cli/program.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/interop/foreign.h"
#include "tessera/interop/torch/file.h"

namespace tessera::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Names = std::vector<std::string>;

class FrozenConvert : public Conversions {
 protected:
  /// Writes the run's checkpoint of step 4, with these states of every parameter whose name
  /// `frozen` does not match: the elements of the s-th state of the n-th parameter are 100 n + s.
  /// `began`: updates before the state of the token table began.
  void save(const std::string& optimizer,
            const Names& states,
            const std::string& frozen,
            std::optional<double> began = std::nullopt) {
    std::vector<checkpoint::PieceBytes> pieces;
    std::map<std::string, std::vector<float>> memory;
    const auto add_state = [&](const std::string& name, const ParamInfo& info, float value) {
      auto& values = memory[name];
      values.assign(static_cast<std::size_t>(info.numel()), value);
      pieces.push_back(piece(name, DType::F32, info.shape, std::span(values)));
    };
    float n = 0;
    for (const auto& [name, info] : infos) {
      pieces.push_back(piece(name, DType::F32, info->shape, std::span(weights.at(name))));
      n += 1;
      if (std::regex_search(name, std::regex(frozen))) continue;
      for (std::size_t s = 0; s < states.size(); ++s) {
        const float value = 100 * n + static_cast<float>(s);
        add_state(fmt::format("optimizer.{}.{}", states[s], name), *info, value);
        expected["transformer." + name].push_back(value);
      }
    }
    double updates = began.value_or(0);
    if (began)
      pieces.push_back(
          piece("optimizer.began.wte.weight", DType::F64, {1}, std::span(&updates, 1)));
    text::TokenizerOptions bytes;
    checkpoint::Meta meta;
    meta.step = 4;
    meta.config = json::Value::object({{"model", resolved.description},
                                       {"tokenizer", config::write(bytes)},
                                       {"optimizer", json::parse(optimizer, "optimizer")}});
    meta.extra = json::Value::object();
    checkpoint::save(run_folder() / "checkpoints", meta, pieces, checkpoint::Ranks());
  }
  template <class T>
  static checkpoint::PieceBytes piece(const std::string& name,
                                      DType dtype,
                                      const Shape& shape,
                                      std::span<T> values) {
    const auto numel = static_cast<std::int64_t>(values.size());
    return {name, dtype, shape, {mesh::whole(shape), 0, numel}, std::as_writable_bytes(values)};
  }
  Outcome to_pair() { return convert({run_folder(), path("model_000004.pth")}); }
  /// Returns the states of the written pair by parameter, one number each: all its elements are
  /// equal.
  std::map<std::string, std::vector<float>> states_of_pair(const Names& states) {
    const interop::Foreign read = *interop::open_foreign(path("model_000004.pth"));
    EXPECT_EQ(read.state.size(), states.size());
    std::map<std::string, std::vector<float>> out;
    for (const std::string& state : states) {
      for (const auto& tensor : read.state.at(state)) {
        float first = 0;
        tensor.read(0, 1, reinterpret_cast<std::byte*>(&first));
        out[tensor.name].push_back(first);
      }
    }
    return out;
  }

  std::map<std::string, std::vector<float>> expected;
};

constexpr const char* kAdamW =
    R"({"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0}, "decay_all": false})";
const Names kMoments = {"exp_avg", "exp_avg_sq"};

TEST_F(FrozenConvert, EachParameterHasItsOwnStateInThePair) {
  for (const char* frozen : {"wte|h\\.0", "h\\.0", "wpe"}) {
    SCOPED_TRACE(frozen);
    expected.clear();
    fs::remove_all(run_folder() / "checkpoints");
    save(kAdamW, kMoments, frozen);

    const Outcome o = convert({run_folder(), path("model_000004.pth"), "--overwrite"});

    ASSERT_EQ(o.code, 0) << o.err;
    EXPECT_EQ(states_of_pair(kMoments), expected);
    EXPECT_EQ(interop::open_foreign(path("model_000004.pth"))->step, 4);
  }
}

TEST_F(FrozenConvert, MomentumIsKeptWhereTheFirstParameterHasNone) {
  save(R"({"type": "SGD", "params": {"lr": 1e-2, "momentum": 0.9}})", {"momentum_buffer"}, "wte");

  const Outcome o = to_pair();

  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(states_of_pair({"momentum_buffer"}), expected);
}

TEST_F(FrozenConvert, MomentumThatIsNowhereIsRefused) {
  save(R"({"type": "SGD", "params": {"lr": 1e-2, "momentum": 0.9}})", {}, "wte");

  const Outcome o = to_pair();

  EXPECT_NE(o.code, 0);
  EXPECT_THAT(o.err, HasSubstr("an optimizer \"SGD\" that keeps nothing of its momentum"));
  EXPECT_FALSE(fs::exists(path("model_000004.pth")));
}

// DeepSpeed's engine reads from a universal checkpoint only what its optimizer trains, and no
// module.
TEST_F(FrozenConvert, AUniversalCheckpointOfFrozenParametersIsRefusedByTheirNames) {
  save(kAdamW, kMoments, "wpe|h\\.0\\.ln_1\\.bias");

  const Outcome o = convert({run_folder(), path("ds"), "--to", "deepspeed-universal"});

  EXPECT_NE(o.code, 0);
  EXPECT_THAT(o.err,
              AllOf(HasSubstr("transformer.wpe.weight"),
                    HasSubstr("transformer.h.0.ln_1.bias"),
                    Not(HasSubstr("transformer.wte.weight"))));
  EXPECT_FALSE(fs::exists(path("ds")));
}

TEST_F(FrozenConvert, StateThatBeganLaterCountsItsOwnUpdates) {
  save(kAdamW, kMoments, "^$", 3);

  const Outcome o = to_pair();

  ASSERT_EQ(o.code, 0) << o.err;
  const auto contents = interop::read_torch_file(path("optimizer_000004.pth"));
  const interop::Named tensors(contents.tensors);
  // The token table is the first parameter of the module: its state has seen 1 of 4 updates.
  for (const auto& [number, steps] : std::map<int, float>{{0, 1}, {1, 4}, {2, 4}}) {
    float step = 0;
    tensors.find(fmt::format("state.{}.step", number))
        ->copy(0, 1, reinterpret_cast<std::byte*>(&step));
    EXPECT_EQ(step, steps) << number;
  }
  const Outcome universal = convert({run_folder(), path("ds"), "--to", "deepspeed-universal"});
  EXPECT_NE(universal.code, 0);
  EXPECT_THAT(universal.err,
              HasSubstr("the state of transformer.wte.weight began after 3 updates"));
}

TEST_F(FrozenConvert, WhatTheOneGroupOfThePairDoesNotSayIsAWarning) {
  const auto warning = [&](const std::string& optimizer) {
    fs::remove_all(run_folder() / "checkpoints");
    save(optimizer, kMoments, "^$");
    const Outcome o = convert({run_folder(), path("model_000004.pth"), "--overwrite"});
    EXPECT_EQ(o.code, 0) << o.err;
    return o.err;
  };
  const std::string decays =
      R"({"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.25}, "decay_all": )";
  const std::string own = R"({"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0},
                              "decay_all": false, "groups": [{"pattern": "ln", )";

  EXPECT_THAT(warning(decays + "false}"), HasSubstr("have its weight_decay of 0.25 too"));
  EXPECT_THAT(warning(own + R"("lr": 1e-4}]})"), HasSubstr("rates and decays of optimizer.groups"));
  EXPECT_THAT(warning(own + R"("weight_decay": 0.5}]})"),
              HasSubstr("rates and decays of optimizer.groups"));
  EXPECT_THAT(warning(decays + "true}"), Not(HasSubstr("one group")));
  EXPECT_THAT(warning(own + R"("frozen": true}]})"), Not(HasSubstr("one group")));
  EXPECT_THAT(warning(kAdamW), Not(HasSubstr("one group")));
}

}  // namespace
}  // namespace tessera::cli
