// SPDX-License-Identifier: Apache-2.0
// All files of the fuzzing corpus (fuzz/corpus/READER/), and the recorded files of other programs,
// are read once more.
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/model_targets.h"
#include "fuzz/targets.h"
#include "support/source_dir.h"
#include <gtest/gtest.h>

#include "tessera/base/files.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> corpus_of(const std::string& target) {
  std::vector<fs::path> out;
  for (const auto& entry :
       fs::directory_iterator(tessera::test::source_dir() / "fuzz/corpus" / target))
    out.push_back(entry.path());
  return out;
}

/// Calls `then` with a folder for the target's file, and each file of its corpus.
template <class Then>
void replay(const std::map<std::string, fuzz::Target>& targets, Then then) {
  for (const auto& [name, target] : targets) {
    const files::TempDir dir;
    fuzz::surround(target, tessera::test::source_dir() / "tests/golden/reference", dir.path());
    const auto corpus = corpus_of(name);
    EXPECT_FALSE(corpus.empty()) << name;
    for (const fs::path& file : corpus) {
      SCOPED_TRACE(file.string());
      then(target, dir.path(), files::read(file));
    }
  }
}

TEST(Corpus, IsReadOrRefusedAsWhatItIs) {
  const auto read =
      [](const fuzz::Target& target, const fs::path& folder, const std::string& text) {
        EXPECT_NO_THROW(fuzz::feed(target, folder, text));
      };
  replay(fuzz::targets(), read);
  replay(fuzz::model_targets(), read);
}

TEST(Corpus, OfModelsIsReadOrRefusedWithAnyByteChanged) {
  std::mt19937 random(31);
  replay(fuzz::model_targets(),
         [&](const fuzz::Target& target, const fs::path& folder, const std::string& text) {
           for (int i = 0; i < 200 && !text.empty(); ++i) {
             std::string bad = text;
             for (unsigned n = 1 + random() % 3; n > 0; --n)
               bad[random() % bad.size()] = "0123456789-.eE[]{}\",:nulltrue\xFF"[random() % 31];
             EXPECT_NO_THROW(fuzz::feed(target, folder, bad)) << bad;
           }
         });
}

/// Valid seeds are read to their end: a corpus of rejected files only would prove little.
TEST(Corpus, HasSoundFilesOfEveryKindThatIsMadeByHand) {
  const std::vector<std::pair<std::string, std::string>> sound = {
      {"torch-loop-model", "sound.pt"},
      {"deepspeed-stage3", "sound.pt"},
      {"deepspeed-sharded-model", "real.pt"},
      {"deepspeed-experts", "sound.pt"},
      {"deepspeed-expert-names", "sound.txt"},
      {"expert-loads", "sound.json"},
      {"vocab", "sound.json"},
      {"merges", "sound.txt"},
      {"tokenizer", "sound.json"},
      {"jsonl", "sound.jsonl"},
      {"hf-config", "gpt2.json"}};
  for (const auto& [name, file] : sound) {
    SCOPED_TRACE(name);
    const files::TempDir dir;
    const bool of_models = fuzz::model_targets().count(name) > 0;
    const fuzz::Target& target =
        of_models ? fuzz::model_targets().at(name) : fuzz::targets().at(name);
    fuzz::surround(target, tessera::test::source_dir() / "tests/golden/reference", dir.path());
    fs::remove(dir.path() / target.file);
    fs::copy_file(tessera::test::source_dir() / "fuzz/corpus" / name / file,
                  dir.path() / target.file);

    EXPECT_NO_THROW(target.read(dir.path()));
  }
}

}  // namespace
}  // namespace tessera::cli
