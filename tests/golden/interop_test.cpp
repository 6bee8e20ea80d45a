// SPDX-License-Identifier: Apache-2.0
// Files that torch wrote, against what they hold: every byte.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "golden/golden.h"
#include <gtest/gtest.h>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/weights.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using checkpoint::Weight;

std::map<std::string, Weight> by_name(const std::vector<Weight>& weights) {
  std::map<std::string, Weight> out;
  for (const Weight& weight : weights)
    out.emplace(weight.name, weight);
  return out;
}

/// `ours` finds the tensor for a recorded name, or nullptr where the record is of something else.
template <class Find>
int compare(const fs::path& folder, Find ours) {
  const checkpoint::SafetensorsFile expected(folder / "expected.safetensors");
  int count = 0;
  for (const auto& entry : expected.entries()) {
    const Weight* weight = ours(entry.name);
    if (weight == nullptr) {
      ADD_FAILURE() << "nothing for " << entry.name;
      continue;
    }
    std::vector<std::byte> bytes(weight->bytes());
    weight->copy(0, weight->numel(), bytes.data());
    EXPECT_EQ(weight->dtype, entry.dtype) << entry.name;
    EXPECT_EQ(weight->shape, entry.shape) << entry.name;
    EXPECT_TRUE(std::ranges::equal(bytes, expected.bytes(entry))) << entry.name;
    ++count;
  }
  return count;
}

const Weight* find(const std::map<std::string, Weight>& weights, const std::string& name) {
  const auto it = weights.find(name);
  return it == weights.end() ? nullptr : &it->second;
}

TEST(GoldenInterop, PytorchModelBinHoldsTheParameters) {
  int files = 0;
  for (const fs::path& folder : golden::cases("interop")) {
    if (!fs::exists(folder / "pytorch_model.bin")) continue;
    SCOPED_TRACE(folder.filename().string());
    const auto weights = by_name(checkpoint::open_weights(folder));

    EXPECT_GT(compare(folder, [&](const std::string& name) { return find(weights, name); }), 0);
    ++files;
  }
  EXPECT_GT(files, 0);
}

TEST(GoldenInterop, FilesOfAPlainTrainingLoopHoldParametersAndMoments) {
  const fs::path folder = golden::folder() / "interop" / "torch_tutorial";
  const json::Value record = golden::read_json(folder / "case.json");
  std::map<std::string, std::string> number;
  for (const json::Value& name : golden::at(record, "parameter_order").items())
    number.emplace(name.as_string(), std::to_string(number.size()));
  std::map<std::string, Weight> model, state;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model_")) model = by_name(checkpoint::open_weight_file(entry.path()));
    if (name.starts_with("optimizer_")) state = by_name(checkpoint::open_weight_file(entry.path()));
  }

  const int compared = compare(folder, [&](const std::string& name) {
    const std::size_t dot = name.find('.');
    const std::string kind = name.substr(0, dot), parameter = name.substr(dot + 1);
    if (kind == "param") return find(model, parameter);
    return find(state, "state." + number.at(parameter) + "." + kind);
  });

  EXPECT_EQ(compared, static_cast<int>(3 * number.size()));
}

}  // namespace
}  // namespace tessera
