// SPDX-License-Identifier: Apache-2.0
// Weights written for others and read back.
#include "tessera/interop/export.h"

#include <algorithm>
#include <map>

#include "interop/support.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/interop/torch/zip.h"
#include "tessera/interop/weights.h"

namespace tessera::interop::test {
namespace {

std::vector<Spec> model() {
  std::vector<Spec> out = small_model();
  // Longer than a piece, and not of a round size.
  out.push_back({"long", DType::F32, {4'200'001}});
  out.push_back({"flags", DType::Bool, {3}});
  out.push_back({"double", DType::F64, {2, 2}});
  return out;
}

std::vector<checkpoint::StreamedTensor> streamed(const std::vector<Spec>& specs) {
  std::vector<checkpoint::StreamedTensor> out;
  for (const Spec& spec : specs) {
    auto bytes = std::make_shared<std::vector<std::byte>>(values(spec));
    const std::size_t width = size_of(spec.dtype);
    out.push_back({spec.name,
                   spec.dtype,
                   spec.shape,
                   [=](std::int64_t begin, std::int64_t end, std::byte* to) {
                     std::memcpy(to,
                                 bytes->data() + static_cast<std::size_t>(begin) * width,
                                 static_cast<std::size_t>(end - begin) * width);
                   },
                   {}});
  }
  return out;
}

std::map<std::string, Weight> by_name(const std::vector<Weight>& weights) {
  std::map<std::string, Weight> out;
  for (const Weight& weight : weights)
    out.emplace(weight.name, weight);
  return out;
}

void expect_same(const std::map<std::string, Weight>& weights, const std::vector<Spec>& specs) {
  for (const Spec& spec : specs) {
    ASSERT_EQ(weights.count(spec.name), 1U) << spec.name;
    const Weight& weight = weights.at(spec.name);
    std::vector<std::byte> bytes(weight.bytes());
    weight.copy(0, weight.numel(), bytes.data());
    EXPECT_EQ(weight.dtype, spec.dtype) << spec.name;
    EXPECT_EQ(weight.shape, spec.shape) << spec.name;
    EXPECT_TRUE(bytes == values(spec)) << spec.name;
  }
}

std::uint64_t total(const std::vector<Spec>& specs) {
  std::uint64_t bytes = 0;
  for (const Spec& spec : specs)
    bytes += values(spec).size();
  return bytes;
}

TEST(Export, ATorchFileReadsBack) {
  const files::TempDir dir;
  std::uint64_t written = 0;

  write_torch_weights(
      dir.path() / "m.bin", streamed(model()), [&](std::uint64_t bytes) { written += bytes; });

  const auto weights = by_name(open_weight_file(dir.path() / "m.bin"));
  EXPECT_EQ(weights.size(), model().size());
  expect_same(weights, model());
  EXPECT_EQ(written, total(model()));
}

TEST(Export, ATorchFileSharesTheStorageOfTiedTensors) {
  const files::TempDir dir;
  auto tensors = streamed({{"wte", DType::F32, {5, 3}}});
  tensors.front().aliases = {"lm_head"};

  write_torch_weights(dir.path() / "m.bin", tensors);

  const auto weights = by_name(open_weight_file(dir.path() / "m.bin"));
  EXPECT_TRUE(weights.at("wte").same_storage(weights.at("lm_head")));
}

TEST(Export, StoragesOfATorchFileAreAligned) {
  const files::TempDir dir;
  write_torch_weights(dir.path() / "m.bin", streamed(small_model()));

  const std::string bytes = slurp(dir.path() / "m.bin");
  for (const auto& [name, entry] : read_zip(std::as_bytes(std::span(bytes)), "m.bin"))
    EXPECT_EQ(entry.begin % 64, 0U) << name;
}

TEST(Export, TypesThatTorchLacksAreRefusedBeforeAnythingIsWritten) {
  const files::TempDir dir;

  const Error error = error_of([&] {
    write_torch_weights(dir.path() / "m.bin", streamed({{"ids", DType::U16, {4}}}));
  });

  EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
  EXPECT_NE(std::string(error.what()).find("ids is of U16"), std::string::npos) << error.text();
  EXPECT_FALSE(fs::exists(dir.path() / "m.bin"));
}

TEST(Export, OneFileOfSafetensorsReadsBack) {
  const files::TempDir dir;

  write_hf_weights(dir.path(), streamed(model()), std::uint64_t{1} << 40);

  EXPECT_EQ(weight_files(dir.path()), std::vector<fs::path>{dir.path() / "model.safetensors"});
  expect_same(by_name(open_weights(dir.path())), model());
}

TEST(Export, ShardsKeepToTheirSizeAndTheIndexFindsThem) {
  const files::TempDir dir;
  constexpr std::uint64_t kShard = 2500;

  write_hf_weights(dir.path(), streamed(small_model()), kShard);

  const auto weights = open_weights(dir.path());
  expect_same(by_name(weights), small_model());
  std::map<fs::path, std::vector<std::uint64_t>> sizes;
  for (const Weight& weight : weights)
    sizes[weight.file].push_back(weight.bytes());
  EXPECT_GT(sizes.size(), 2U);
  for (const auto& [file, each] : sizes) {
    std::uint64_t sum = 0;
    for (const std::uint64_t bytes : each)
      sum += bytes;
    EXPECT_TRUE(sum <= kShard || each.size() == 1) << file;
  }
  EXPECT_TRUE(
      fs::exists(dir.path() / fmt::format("model-00001-of-{:05}.safetensors", sizes.size())));
}

TEST(Export, SafetensorsSayWhatWasTied) {
  const files::TempDir dir;
  auto tensors = streamed({{"wte", DType::F32, {5, 3}}});
  tensors.front().aliases = {"lm_head"};

  write_hf_weights(dir.path(), tensors, std::uint64_t{1} << 30);

  const checkpoint::SafetensorsFile file(dir.path() / "model.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("lm_head"), "wte");
  EXPECT_EQ(file.entries().size(), 1U);
}

}  // namespace
}  // namespace tessera::interop::test
