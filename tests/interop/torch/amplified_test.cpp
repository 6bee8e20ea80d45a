// SPDX-License-Identifier: Apache-2.0
// Small torch.save files whose values are repeated many times: the expanded size is limited.
#include <chrono>
#include <cstdint>
#include <string>

#include "interop/support.h"
#include "interop/torch/torch_bytes.h"
#include <gtest/gtest.h>

#include "tessera/interop/torch/file.h"

namespace tessera::interop::test {
namespace {

constexpr std::size_t kMany = 50'000, kLong = 60'000;

/// Returns a list of `times` equal values.
std::string repeated(const std::string& value, std::size_t times) {
  std::string out = "](" + value + "q" + std::string(1, '\0');
  for (std::size_t i = 1; i < times; ++i)
    out += "h" + std::string(1, '\0');
  return out + "e";
}

std::string one_float() {
  return op::tensor(op::storage("FloatStorage", "0", 1), 0, {1}, {1});
}

/// Checks that both readers reject the repetition quickly.
void expect_refused(const std::string& value) {
  const files::TempDir dir;
  spill(dir.path() / "a.pt", torch_zip(pickle_of(value), {std::string(4, 'x')}));
  const auto begin = std::chrono::steady_clock::now();

  const Error error = error_of([&] { read_torch_file(dir.path() / "a.pt"); });

  EXPECT_NE(error.text().find("it repeats its values until"), std::string::npos) << error.text();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(AmplifiedTorchFile, OfManyTensorsUnderOneLongNameIsRefused) {
  expect_refused(op::dict({{std::string(kLong, 'k'), repeated(one_float(), kMany)}}));
}

TEST(AmplifiedTorchFile, OfOneLongTextInManyPlacesIsRefused) {
  expect_refused(
      op::dict({{"a", one_float()}, {"b", repeated(op::text(std::string(kLong, 'v')), kMany)}}));
}

TEST(AmplifiedTorchFile, OfOneLongKeyInManyPlacesIsRefused) {
  expect_refused(op::dict({{"b", repeated(op::dict({{std::string(kLong, 'v'), "N"}}), kMany)}}));
}

TEST(AmplifiedTorchFile, OfOneStorageWithALongKeyIsRefused) {
  const std::string key(kLong, 's');
  const files::TempDir dir;
  const std::string value = op::dict(
      {{"a", repeated(op::tensor(op::storage("FloatStorage", key, 1), 0, {1}, {1}), kMany)}});
  spill(dir.path() / "a.pt", torch_zip(pickle_of(value), {}));

  const Error error = error_of([&] { open_torch_file(dir.path() / "a.pt"); });

  EXPECT_NE(error.text().find("it repeats its values until"), std::string::npos) << error.text();
}

TEST(AmplifiedTorchFile, OfListsInListsUnderALongNameCostsNoNameForWhatIsNotATensor) {
  // 4,000,000 times None under a name of 60 kB; only the lists have a name.
  std::string row = "](N", rows = "](";
  for (int i = 0; i < 1999; ++i)
    row += "N";
  rows += row + "eq\x01";
  for (int i = 0; i < 1998; ++i)
    rows += "h\x01";
  const files::TempDir dir;
  const std::string value = op::dict({{"a", one_float()}, {std::string(kLong, 'k'), rows + "e"}});
  spill(dir.path() / "a.pt", torch_zip(pickle_of(value), {std::string(4, 'x')}));

  EXPECT_EQ(open_torch_file(dir.path() / "a.pt").size(), 1U);
}

TEST(AmplifiedTorchFile, ThatRepeatsWithinReasonIsRead) {
  const files::TempDir dir;
  const std::string value = op::dict({{"layers.of.a.deep.model", repeated(one_float(), 10'000)}});
  spill(dir.path() / "a.pt", torch_zip(pickle_of(value), {std::string(4, 'x')}));

  EXPECT_EQ(open_torch_file(dir.path() / "a.pt").size(), 10'000U);
}

}  // namespace
}  // namespace tessera::interop::test
