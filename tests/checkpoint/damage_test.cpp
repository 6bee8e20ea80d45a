// SPDX-License-Identifier: Apache-2.0
#include <random>

#include "checkpoint/support.h"
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint::test {
namespace {

enum class Outcome { Exact, Refused, Wrong };

/// Returns the outcome of a full load, and of reading the numbers of the manifest.
Outcome outcome(const fs::path& folder) {
  try {
    if (!loads_exactly(folder, small_model(), columns, 2)) return Outcome::Wrong;
    const Meta meta = Checkpoint(folder).meta(), wanted = meta_at(meta.step);
    const bool same = meta.step == 2 && meta.samples == wanted.samples &&
                      meta.tokens == wanted.tokens && meta.config == wanted.config &&
                      meta.extra == wanted.extra;
    return same ? Outcome::Exact : Outcome::Wrong;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Format) << error.text();
    EXPECT_NE(std::string(error.what()).find("step-00000002"), std::string::npos) << error.text();
    return Outcome::Refused;
  }
}

TEST(Damage, ATruncatedFileIsNeverWrongData) {
  const files::TempDir dir;
  const fs::path folder = save_model(dir.path(), 2, small_model(), ranges, 2);
  std::mt19937 random(1);
  for (const auto& file : {"manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"}) {
    const std::string good = slurp(folder / file);
    for (int round = 0; round < 150; ++round) {
      const std::size_t size = round < 8 ? static_cast<std::size_t>(round) : random() % good.size();
      spill(folder / file, good.substr(0, size));
      EXPECT_EQ(outcome(folder), Outcome::Refused) << file << " cut to " << size;
    }
    spill(folder / file, good);
  }
  EXPECT_EQ(outcome(folder), Outcome::Exact);
}

TEST(Damage, FlippedBytesAreNeverWrongData) {
  const files::TempDir dir;
  const fs::path folder = save_model(dir.path(), 2, small_model(), ranges, 2);
  std::mt19937 random(2);
  for (const auto& file : {"manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"}) {
    const std::string good = slurp(folder / file);
    for (int round = 0; round < 400; ++round) {
      std::string bad = good;
      for (int flips = round % 3; flips >= 0; --flips) {
        // Every second round changes the header, where a flip is more than a wrong number.
        const std::size_t at =
            random() % (round % 2 == 0 ? std::min<std::size_t>(600, bad.size()) : bad.size());
        bad[at] = static_cast<char>(static_cast<unsigned>(bad[at]) ^ (1U << (random() % 8)));
      }
      spill(folder / file, bad);
      // Two flips may cancel each other.
      EXPECT_EQ(outcome(folder), bad == good ? Outcome::Exact : Outcome::Refused)
          << file << " in round " << round;
    }
    spill(folder / file, good);
  }
}

TEST(Damage, EveryByteOfTheManifestIsGuarded) {
  const files::TempDir dir;
  const fs::path folder = save_model(dir.path(), 2, {{"w", DType::F32, {2}}});
  const std::string good = slurp(folder / "manifest.json");
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(static_cast<unsigned>(bad[at]) ^ 1U);
    spill(folder / "manifest.json", bad);
    EXPECT_EQ(error_of([&] { Checkpoint checkpoint(folder); }).kind(), Error::Kind::Format) << at;
  }
}

/// A checkpoint of three ranks, the first of which holds nothing; it is small enough to try all
/// changes.
class TinyCheckpoint : public ::testing::Test {
 protected:
  TinyCheckpoint() : folder(save_model(dir.path(), 2, kModel, columns, 3)) {
    for (const auto& entry : fs::directory_iterator(folder))
      names.push_back(entry.path().filename().string());
  }
  /// Returns whether verification fails and names `file`, and so does loading if that file is read.
  [[nodiscard]] bool refused(const std::string& file) const {
    const bool is_read = file.starts_with("rank-") && file != kUnread;
    const auto named = [&](const Error& error) {
      return error.kind() == Error::Kind::Format &&
             std::string(error.what()).find(file) != std::string::npos;
    };
    return named(error_of([&] { Checkpoint(folder).verify(); })) &&
           (!is_read || named(error_of([&] { loads_exactly(folder, kModel); })));
  }
  static constexpr const char* kUnread = "rank-00000.safetensors";
  static inline const std::vector<Spec> kModel = {{"w", DType::F32, {3, 2}},
                                                  {"h", DType::BF16, {2}}};
  files::TempDir dir;
  fs::path folder;
  std::vector<std::string> names;
};

void flip_bit(const fs::path& path, std::size_t at, unsigned bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const auto flipped = static_cast<char>(static_cast<unsigned>(file.get()) ^ (1U << bit));
  file.seekp(static_cast<std::streamoff>(at));
  file.put(flipped);
}

TEST_F(TinyCheckpoint, NamesTheFileOfAnyBitThatFlipped) {
  ASSERT_EQ(names.size(), 4U);
  for (const std::string& file : names) {
    const std::size_t size = fs::file_size(folder / file);
    for (std::size_t i = 0; i < size * 8; ++i) {
      flip_bit(folder / file, i / 8, i % 8);
      ASSERT_TRUE(refused(file)) << file << ": bit " << i % 8 << " of byte " << i / 8;
      flip_bit(folder / file, i / 8, i % 8);
    }
  }
  Checkpoint(folder).verify();
  EXPECT_TRUE(loads_exactly(folder, kModel));
}

TEST_F(TinyCheckpoint, NamesTheFileThatIsCutAnywhereOrGrewOrIsGone) {
  for (const std::string& file : names) {
    const std::string good = slurp(folder / file);
    spill(folder / file, good + '\0');
    EXPECT_TRUE(refused(file)) << file;
    spill(folder / file, good);
    for (std::size_t size = good.size(); size-- > 0;) {
      fs::resize_file(folder / file, size);
      ASSERT_TRUE(refused(file)) << file << " cut to " << size;
    }
    fs::remove(folder / file);
    EXPECT_TRUE(refused(file)) << file;
    spill(folder / file, good);
  }
  EXPECT_TRUE(loads_exactly(folder, kModel));
}

TEST_F(TinyCheckpoint, RefusesFilesThatChangedPlaces) {
  for (const std::string& a : names) {
    for (const std::string& b : names) {
      if (a >= b) continue;
      fs::rename(folder / a, folder / "x");
      fs::rename(folder / b, folder / a);
      fs::rename(folder / "x", folder / b);
      EXPECT_TRUE(refused(a) || refused(b)) << a << " and " << b;
      fs::rename(folder / a, folder / "x");
      fs::rename(folder / b, folder / a);
      fs::rename(folder / "x", folder / b);
    }
  }
  EXPECT_TRUE(loads_exactly(folder, kModel));
}

/// Writes a manifest's text with a matching checksum, as a forger would.
void write_sealed(const fs::path& path, const std::string& text) {
  const std::string body = text.substr(0, text.rfind("\"checksum\""));
  const std::string sum = files::hex64(files::xxh3(std::as_bytes(std::span(body))));
  spill(path, body + "\"checksum\": \"xxh3:" + sum + "\"\n}\n");
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from << " in " << text;
  text.replace(at, from.size(), to);
}

TEST_F(TinyCheckpoint, OfTheFirstVersionHasNoChecksumsOfHeadersAndLoads) {
  std::string text = slurp(folder / "manifest.json");
  replace(text, "\"version\": 2", "\"version\": 1");
  const auto begin = text.find("\"headers\""), end = text.rfind("\"checksum\"");
  ASSERT_LT(begin, end);
  write_sealed(folder / "manifest.json", text.erase(begin, end - begin));

  Checkpoint(folder).verify();

  EXPECT_TRUE(loads_exactly(folder, kModel));
}

/// Flips one bit in the last byte of a tensor's data.
void flip(const fs::path& file, const std::string& entry) {
  std::string content = slurp(file);
  std::size_t at = 0;
  {
    const SafetensorsFile shard(file);
    at = shard.data_begin() + shard.find(entry)->end - 1;
  }
  content[at] = static_cast<char>(static_cast<unsigned>(content[at]) ^ 16U);
  spill(file, content);
}

TEST(Damage, IsNamedByFileTensorAndPlaceAndTheNewestWholeOneOffered) {
  const files::TempDir dir;
  for (const int step : {1, 2, 3, 4})
    save_model(dir.path(), step, small_model(), ranges, 2);
  flip(dir.path() / "step-00000003/rank-00000.safetensors", "h.0.bias@0");
  const fs::path damaged = dir.path() / "step-00000004";
  flip(damaged / "rank-00001.safetensors", "wte@212");

  const Error load = error_of([&] { loads_exactly(damaged); });
  const Error verify = error_of([&] { Checkpoint(damaged).verify(); });
  const Error digest = error_of([&] { (void)Checkpoint(damaged).digest(); });

  for (const Error& error : {load, verify, digest}) {
    const std::string what = error.what();
    EXPECT_EQ(error.kind(), Error::Kind::Format);
    EXPECT_NE(what.find("step-00000004/rank-00001.safetensors"), std::string::npos) << what;
    EXPECT_NE(what.find("tensor \"wte\""), std::string::npos) << what;
    EXPECT_NE(what.find(" of the file do not match their checksum"), std::string::npos) << what;
    EXPECT_NE(error.fix().find("step-00000002"), std::string::npos) << error.fix();
  }
}

TEST(Damage, OfAShardsSizeIsFoundWithoutReadingIt) {
  const files::TempDir dir;
  const fs::path folder = save_model(dir.path(), 2, small_model(), ranges, 2);
  const fs::path shard = folder / "rank-00001.safetensors";
  const std::string good = slurp(shard);
  Checkpoint(folder).check_files();

  spill(shard, good.substr(0, good.size() - 4));
  const Error cut = error_of([&] { Checkpoint(folder).check_files(); });
  fs::remove(shard);
  const Error gone = error_of([&] { Checkpoint(folder).check_files(); });

  for (const Error& error : {cut, gone}) {
    EXPECT_EQ(error.kind(), Error::Kind::Format);
    EXPECT_NE(std::string(error.what()).find("rank-00001.safetensors"), std::string::npos);
    EXPECT_FALSE(error.fix().empty());
  }
}

TEST(Damage, OfATensorThatIsNotWantedDoesNotMatter) {
  const files::TempDir dir;
  const fs::path folder = save_model(dir.path(), 2, small_model(), ranges, 2);
  flip(folder / "rank-00001.safetensors", "wte@212");
  const Spec bias = small_model()[2];

  EXPECT_TRUE(loads_exactly(folder, {bias}));
}

TEST(Damage, AMissingShardIsNamed) {
  const files::TempDir dir;
  const fs::path folder = save_model(dir.path(), 2, small_model(), ranges, 2);
  fs::remove(folder / "rank-00001.safetensors");

  const Error error = error_of([&] { loads_exactly(folder); });

  EXPECT_EQ(error.kind(), Error::Kind::Format);
  EXPECT_NE(std::string(error.what()).find("rank-00001.safetensors does not exist"),
            std::string::npos)
      << error.text();
  EXPECT_NE(error.fix().find("--resume never"), std::string::npos) << error.fix();
}

/// Returns the error of verifying a checkpoint of two ranks.
Error damage_of(const fs::path& folder) {
  const Error verify = error_of([&] { Checkpoint(folder).verify(); });
  const Error load = error_of([&] { loads_exactly(folder); });
  EXPECT_EQ(verify.kind(), Error::Kind::Format) << verify.text();
  EXPECT_EQ(load.kind(), Error::Kind::Format) << load.text();
  return verify;
}

TEST(Damage, ShardsThatChangedPlacesAreNamed) {
  const files::TempDir dir;
  const fs::path folder = save_model(dir.path(), 2, small_model(), ranges, 2);
  fs::rename(folder / "rank-00000.safetensors", folder / "x");
  fs::rename(folder / "rank-00001.safetensors", folder / "rank-00000.safetensors");
  fs::rename(folder / "x", folder / "rank-00001.safetensors");

  const Error error = damage_of(folder);

  for (const char* part : {"step-00000002/rank-0000", "tensor \""})
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.text();
}

TEST(Damage, AShardOfAnOlderStepIsNamedWithItsTensor) {
  const files::TempDir dir;
  const fs::path older = save_model(dir.path(), 1, small_model(), ranges, 2, /*seed=*/1);
  const fs::path folder = save_model(dir.path(), 2, small_model(), ranges, 2, /*seed=*/2);
  const fs::path shard = folder / "rank-00001.safetensors";
  const auto size = fs::file_size(shard);
  fs::remove(shard);
  fs::copy_file(older / "rank-00001.safetensors", shard);
  ASSERT_EQ(fs::file_size(shard), size);

  const Error error = damage_of(folder);

  const std::string what = error.what();
  EXPECT_NE(what.find("step-00000002/rank-00001.safetensors"), std::string::npos) << what;
  EXPECT_NE(what.find("tensor \""), std::string::npos) << what;
  EXPECT_NE(error.fix().find("step-00000001"), std::string::npos) << error.fix();
}

TEST(Damage, AShardThatIsALinkIsRefused) {
  const files::TempDir dir;
  const fs::path folder = save_model(dir.path(), 2);
  fs::rename(folder / "rank-00000.safetensors", dir.path() / "elsewhere");
  fs::create_symlink(dir.path() / "elsewhere", folder / "rank-00000.safetensors");

  EXPECT_EQ(error_of([&] { loads_exactly(folder); }).kind(), Error::Kind::Format);
}

/// Returns the error of a manifest with one tensor [4, 4] whose text has `from` replaced by `to`
/// and a new checksum, as an attacker would write it.
Error forged(const std::string& from, const std::string& to) {
  const files::TempDir dir;
  const fs::path folder = save_model(dir.path(), 2, {{"w", DType::F32, {4, 4}}}, columns, 2);
  std::string text = slurp(folder / "manifest.json");
  replace(text, from, to);
  write_sealed(folder / "manifest.json", text);
  const Error error = error_of([&] { loads_exactly(folder, {{"w", DType::F32, {4, 4}}}); });
  EXPECT_EQ(error.kind(), Error::Kind::Format) << to << ": " << error.text();
  return error;
}

TEST(ForgedManifest, PathsLeadNowhereElse) {
  const std::string shard = "rank-00000.safetensors";
  for (const std::string path : {"../../etc/passwd",
                                 "/etc/passwd",
                                 "../rank-00000.safetensors",
                                 "rank-00000.safetensors/..",
                                 "rank-0.safetensors",
                                 "rank-0000a.safetensors",
                                 "",
                                 "manifest.json"}) {
    const Error error = forged(shard, path);
    EXPECT_NE(std::string(error.what()).find("file name"), std::string::npos) << error.text();
  }
}

TEST(ForgedManifest, FalseNumbersAreRefused) {
  forged("\"shape\": [4, 4]", "\"shape\": [-4, 4]");
  forged("\"shape\": [4, 4]", "\"shape\": [4294967296, 4294967296]");
  forged("\"shape\": [4, 4]", "\"shape\": [1000000000000, 4]");
  forged("\"shape\": [4, 4]", "\"shape\": [0, 4]");
  forged("\"shape\": [4, 4]", "\"shape\": [99999999999999999999]");
  forged("\"range\": [0, 8]", "\"range\": [0, 9]");
  forged("\"range\": [0, 8]", "\"range\": [0, 7]");
  forged("\"range\": [0, 8]", "\"range\": [8, 0]");
  forged("\"range\": [0, 8]", "\"range\": [0, 9223372036854775807]");
  forged("\"range\": [0, 8]", "\"range\": [0]");
  forged("[[0, 0], [4, 2]]", "[[0, 0], [4, 5]]");
  forged("[[0, 0], [4, 2]]", "[[0], [4]]");
  forged("[[0, 0], [4, 2]]", "[[0, 2], [4, 4]]");
  forged("[[0, 0], [4, 2]]", "[[0, 1], [4, 3]]");
  forged("\"version\": 2", "\"version\": 3");
  forged("\"version\": 2", "\"version\": 0");
  forged("\"step\": 2", "\"step\": -2");
  forged("\"dtype\": \"F32\"", "\"dtype\": \"F16\"");
  forged("\"dtype\": \"F32\"", "\"dtype\": \"F99\"");
  forged("\"name\": \"w\"", "\"name\": \"\"");
  forged("\"entry\": \"w@0\"", "\"entry\": \"x\"");
  forged("\"xxh3\": [", "\"xxh3\": [\"0000000000000000\", ");
  forged("\"tensors\"", "\"tensor\"");
}

TEST(ForgedManifest, PiecesThatOverlapOrRepeatAreRefused) {
  const Error twice = forged("\"box\": [[0, 2], [4, 4]]", "\"box\": [[0, 0], [4, 2]]");
  EXPECT_NE(std::string(twice.what()).find("twice"), std::string::npos) << twice.text();
  const Error shared = forged("\"box\": [[0, 2], [4, 4]]", "\"box\": [[0, 1], [4, 3]]");
  EXPECT_NE(std::string(shared.what()).find("share elements"), std::string::npos) << shared.text();
}

TEST(ForgedManifest, ChecksumsOfHeadersAreNeededAndGuarded) {
  const std::string begin = "\"headers\": {\n\"rank-00000.safetensors\": \"";
  forged("\"headers\"", "\"header\"");
  forged("\"version\": 2", "\"version\": 1");
  forged(begin, begin + "0");
  forged(begin, "\"headers\": {\n\"../rank-00000.safetensors\": \"");
  const Error missing = forged(begin, "\"headers\": {\n\"rank-00002.safetensors\": \"");
  EXPECT_NE(std::string(missing.what()).find("no checksum of the header"), std::string::npos)
      << missing.text();
}

TEST(ForgedManifest, InvalidPartsAreRefused) {
  const std::string save = ", \"save\": \"18c2a3f09be72001\"";
  for (const std::string& part :
       {"\"node\": 0, \"nodes\": 2" + save,  // a part, but not by its name
        "\"node\": 2, \"nodes\": 2" + save,
        "\"node\": 0, \"nodes\": 1" + save,
        "\"node\": 0, \"nodes\": 9223372036854775807" + save,
        "\"node\": -1, \"nodes\": 2" + save,
        "\"nodes\": 2" + save,
        std::string("\"node\": 0, \"nodes\": 2"),
        "\"node\": 0, \"nodes\": 2, \"x\": 1" + save})
    forged("\"tensors\"", "\"part\": {" + part + "},\n\"tensors\"");
}

TEST(ForgedManifest, DepthAndSizeAreLimited) {
  forged("\"config\": {", "\"config\": " + std::string(200'000, '[') + "{");
  forged(
      "\"shape\": [4, 4]", "\"shape\": [4, 4" + std::string(300'000, ' ') + ", 1, 1" + [] {
        std::string many;
        for (int i = 0; i < 100; ++i)
          many += ", 1";
        return many;
      }() + "]");
}

}  // namespace
}  // namespace tessera::checkpoint::test
