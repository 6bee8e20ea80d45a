// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/content_hash.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/inputs.h"

namespace tessera::files {
namespace {

class ContentHash : public testing::Test {
 protected:
  ContentHash() { setenv("TESSERA_CACHE", (folder_.path() / "cache").c_str(), 1); }
  ~ContentHash() override { unsetenv("TESSERA_CACHE"); }
  fs::path write(const std::string& name, const std::string& content) const {
    write_atomic(folder_.path() / name, content);
    return folder_.path() / name;
  }
  static std::uint64_t hash(const std::vector<fs::path>& files) { return content_hash(files); }

  TempDir folder_;
};

TEST_F(ContentHash, DependsOnEveryByteAndOnNothingElse) {
  const std::string text(5 << 20, 'x');  // more than is read at once
  const std::uint64_t whole = hash({write("a", text)});

  EXPECT_EQ(hash({write("b", text)}), whole) << "the name does not matter";
  for (const std::size_t at : {std::size_t{0}, std::size_t{4} << 20, text.size() - 1}) {
    std::string other = text;
    other[at] = 'y';
    EXPECT_NE(hash({write("b", other)}), whole) << at;
  }
  EXPECT_NE(hash({write("b", text.substr(1))}), whole);
}

TEST_F(ContentHash, KeepsFilesApart) {
  const fs::path ab = write("ab", "ab"), c = write("c", "c"), a = write("a", "a"),
                 bc = write("bc", "bc");

  EXPECT_NE(hash({ab, c}), hash({a, bc}));
  EXPECT_NE(hash({a, c}), hash({c, a}));
}

TEST_F(ContentHash, RefusesWhatIsNotAFile) {
  EXPECT_THROW(hash({folder_.path() / "none"}), Error);
  const fs::path fifo = folder_.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THROW(hash({fifo}), Error);
}

// A file that is changed in place, with the size and the time of modification of before, has
// another time of change.
TEST_F(ContentHash, IsNotTakenFromTheCacheForAChangedFile) {
  std::string text(17 << 20, 'x');
  const fs::path file = write("a", text);
  const auto time = fs::last_write_time(file);
  const std::uint64_t before = hash({file});
  text[100] = 'y';
  write("a", text);
  fs::last_write_time(file, time);

  EXPECT_NE(hash({file}), before);
}

TEST(Inputs, AreNotedOnceInTheInnermostLog) {
  std::vector<Input> outer, inner;
  note_input({"model", "nowhere", {}});
  {
    const InputLog log(outer);
    note_input({"model", "a", {"a/x"}});
    note_input({"model", "a", {"a/x"}});
    const InputLog hides(inner);
    note_program("reward program", {"sh", "no-such-file", "/etc/passwd"});
  }
  note_input({"model", "nowhere", {}});

  ASSERT_EQ(outer.size(), 1U);
  EXPECT_EQ(outer.front().where, "a");
  ASSERT_EQ(inner.size(), 1U);
  EXPECT_EQ(inner.front().where, "sh no-such-file /etc/passwd");
  ASSERT_EQ(inner.front().files.size(), 2U);
  EXPECT_EQ(inner.front().files[0].filename(), "sh");
  EXPECT_EQ(inner.front().files[1], "/etc/passwd");
}

}  // namespace
}  // namespace tessera::files
