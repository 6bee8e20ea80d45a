// SPDX-License-Identifier: Apache-2.0
// Real files with bytes changed, removed, repeated and moved: every reader either rejects them or
// reads something inside the file. The changes are a function of a seed, so that a failure can be
// reproduced.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "interop/support.h"
#include "interop/torch/torch_bytes.h"
#include "support/source_dir.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/base/philox.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/torch/file.h"
#include "tessera/interop/weights.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

/// Random numbers of one mutation.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : noise_{seed} {}
  std::size_t below(std::size_t limit) {
    const Philox::Block block = noise_(at_++);
    return limit == 0 ? 0 : static_cast<std::size_t>(block[0]) % limit;
  }

 private:
  Philox noise_;
  std::uint64_t at_ = 0;
};

/// Returns lengths and offsets that commonly break readers.
std::string awkward_number(Dice& dice) {
  static const std::vector<std::uint64_t> kNumbers = {0,
                                                      1,
                                                      0x7F,
                                                      0xFF,
                                                      0x7FFF,
                                                      0xFFFF,
                                                      0x7FFFFFFF,
                                                      0xFFFFFFFF,
                                                      0x7FFFFFFFFFFFFFFF,
                                                      0x8000000000000000,
                                                      0xFFFFFFFFFFFFFFFF};
  const std::size_t widths[] = {1, 2, 4, 8};
  return test::le(kNumbers[dice.below(kNumbers.size())], widths[dice.below(4)]);
}

/// Chooses positions near the ends more often, because headers and directories are there.
std::size_t place(Dice& dice, std::size_t size) {
  const std::size_t near = std::min<std::size_t>(size, 600);
  switch (dice.below(3)) {
    case 0:
      return dice.below(near);
    case 1:
      return size - dice.below(near);
    default:
      return dice.below(size);
  }
}

std::string mutated(std::string bytes, std::uint64_t seed) {
  Dice dice(seed);
  for (std::size_t n = 1 + dice.below(4); n > 0 && !bytes.empty(); --n) {
    const std::size_t at = std::min(place(dice, bytes.size()), bytes.size() - 1);
    switch (dice.below(6)) {
      case 0:
        bytes[at] = static_cast<char>(dice.below(256));
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ static_cast<char>(1U << dice.below(8)));
        break;
      case 2: {
        const std::string number = awkward_number(dice);
        bytes.replace(at, std::min(number.size(), bytes.size() - at), number);
        break;
      }
      case 3:
        bytes.resize(at);
        break;
      case 4:
        bytes.erase(at, 1 + dice.below(16));
        break;
      default: {
        const std::string piece = bytes.substr(at, 1 + dice.below(64));
        bytes.insert(place(dice, bytes.size()), piece);
      }
    }
  }
  return bytes;
}

void touch(const std::vector<Weight>& weights) {
  std::vector<std::byte> buffer;
  for (const Weight& weight : weights) {
    // The data read must be inside the file; zero strides may make it look larger than it is.
    const std::int64_t count = std::min<std::int64_t>(weight.numel(), 1 << 16);
    buffer.resize(static_cast<std::size_t>(count) * size_of(weight.dtype));
    weight.copy(0, count, buffer.data());
    weight.copy(weight.numel() - count, weight.numel(), buffer.data());
  }
}

void touch(const Foreign& foreign) {
  std::vector<std::byte> buffer;
  for (const checkpoint::StreamedTensor& tensor : foreign.weights) {
    const auto numel = static_cast<std::int64_t>(tensor.bytes() / size_of(tensor.dtype));
    const std::int64_t count = std::min<std::int64_t>(numel, 1 << 16);
    buffer.resize(static_cast<std::size_t>(count) * size_of(tensor.dtype));
    tensor.read(numel - count, numel, buffer.data());
  }
}

/// Runs `read` on mutations of the file at `path`, in place; the file is restored at the end.
/// Returns how many were rejected.
int survive(const fs::path& path, int times, const std::function<void()>& read) {
  const std::string sound = files::read(path);
  int refused = 0;
  for (int i = 0; i < times; ++i) {
    const std::string bad = mutated(
        sound,
        mix64(std::hash<std::string>()(path.filename().string()), static_cast<std::uint64_t>(i)));
    if (bad == sound) {
      ++refused;  // there is nothing to reject
      continue;
    }
    test::spill(path, bad);
    try {
      read();
    } catch (const Error& error) {
      EXPECT_NE(error.kind(), Error::Kind::Bug)
          << path << " mutation " << i << ": " << error.text();
      EXPECT_FALSE(std::string(error.what()).empty());
      ++refused;
    } catch (const std::exception& error) {
      ADD_FAILURE() << path << " mutation " << i << ": " << error.what();
    }
  }
  test::spill(path, sound);
  read();  // the original file is valid
  return refused;
}

fs::path reference() {
  return tessera::test::source_dir() / "tests/golden/reference";
}

class Mutations : public ::testing::Test {
 protected:
  fs::path copy(const std::string& from) {
    const fs::path to = dir.path() / fs::path(from).filename();
    fs::copy(reference() / from, to, fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(dir.path()))
      fs::permissions(entry.path(), fs::perms::owner_all);
    return to;
  }
  static constexpr int kTimes = 400;
  files::TempDir dir;
};

TEST_F(Mutations, OfSafetensors) {
  const fs::path file = copy("models/gpt2/model.safetensors");

  EXPECT_GT(survive(file, kTimes, [&] { touch(open_weight_file(file)); }), kTimes / 4);
}

TEST_F(Mutations, OfTorchsZipForm) {
  const fs::path file = copy("interop/bin_zip/pytorch_model.bin");

  EXPECT_GT(survive(file, kTimes, [&] { touch(open_weight_file(file)); }), kTimes / 4);
}

TEST_F(Mutations, OfTorchsOldForm) {
  const fs::path file = copy("interop/bin_legacy/pytorch_model.bin");

  EXPECT_GT(survive(file, kTimes, [&] { touch(open_weight_file(file)); }), kTimes / 4);
}

TEST_F(Mutations, OfAnIndexOfShards) {
  const fs::path folder = copy("models/llama_bf16_sharded");

  EXPECT_GT(
      survive(
          folder / "model.safetensors.index.json", kTimes, [&] { touch(open_weights(folder)); }),
      kTimes / 4);
}

TEST_F(Mutations, OfDeepSpeedsFiles) {
  for (const char* name : {"deepspeed_z1_fp32", "deepspeed_z3_bf16"}) {
    const fs::path folder = copy(std::string("interop/") + name);
    for (const auto& entry : fs::directory_iterator(folder / "global_step5")) {
      if (entry.path().filename().string().find("rank_1_") != std::string::npos) continue;
      EXPECT_GT(survive(entry.path(), kTimes / 4, [&] { touch(*open_foreign(folder)); }),
                kTimes / 16)
          << entry.path();
    }
  }
}

TEST_F(Mutations, OfTrainingLoops) {
  const fs::path folder = copy("interop/torch_tutorial");

  EXPECT_GT(
      survive(folder / "optimizer_000005.pth", kTimes / 2, [&] { touch(*open_foreign(folder)); }),
      kTimes / 8);
}

TEST_F(Mutations, OfManifests) {
  const fs::path folder = test::save_model(dir.path() / "root", 3);

  const int refused = survive(folder / "manifest.json", kTimes, [&] {
    checkpoint::read_manifest(folder / "manifest.json");
  });

  EXPECT_EQ(refused, kTimes);  // its last line is a checksum of the others
}

TEST_F(Mutations, OfCheckpointsShards) {
  const fs::path folder = test::save_model(dir.path() / "root", 3);

  const int refused = survive(
      folder / "rank-00000.safetensors", kTimes, [&] { checkpoint::Checkpoint(folder).verify(); });

  EXPECT_EQ(refused, kTimes);  // the manifest has checksums of its header and of its data
}

}  // namespace
}  // namespace tessera::interop
