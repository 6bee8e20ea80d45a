// SPDX-License-Identifier: Apache-2.0
// Every file that fuzzing found worth keeping (fuzz/corpus/READER/), and the recorded files of
// other programs, through the readers once more.
#include <filesystem>
#include <string>
#include <vector>

#include "fuzz/targets.h"
#include <gtest/gtest.h>

#include "tessera/base/files.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> corpus_of(const std::string& target) {
  std::vector<fs::path> out;
  for (const auto& entry :
       fs::directory_iterator(fs::path(TESSERA_SOURCE_DIR) / "fuzz/corpus" / target))
    out.push_back(entry.path());
  return out;
}

TEST(Corpus, IsReadOrRefusedAsWhatItIs) {
  for (const auto& [name, target] : fuzz::targets()) {
    const files::TempDir dir;
    fuzz::surround(target, fs::path(TESSERA_SOURCE_DIR) / "tests/golden/reference", dir.path());
    const auto corpus = corpus_of(name);
    EXPECT_FALSE(corpus.empty()) << name;
    for (const fs::path& file : corpus) {
      SCOPED_TRACE(file.string());
      EXPECT_NO_THROW(fuzz::feed(target, dir.path(), files::read(file)));
    }
  }
}

}  // namespace
}  // namespace tessera::cli
