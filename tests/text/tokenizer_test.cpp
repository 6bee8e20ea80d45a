// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer.h"

#include <thread>

#include "support/text_files.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tessera::text {
namespace {

using nlohmann::json;
using test::byte;
using test::contains;
using test::error_of;
using test::Folder;
using test::gpt2;
using test::ids_of;
using test::random_text;
using Ids = std::vector<std::int32_t>;

std::string random_bytes(std::mt19937& random) {
  std::string bytes(random() % 200, '\0');
  for (char& b : bytes)
    b = static_cast<char>(random());
  return bytes;
}

/// A byte-level vocabulary with two merges: "ab" and "abab".
struct SmallVocabulary {
  json vocab = json::object();
  std::vector<std::string> merges = {"#version: 0.2", "a b", "ab ab"};

  SmallVocabulary() {
    int id = 0;
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool self = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      vocab[test::utf8_of(self ? static_cast<char32_t>(b) : next++)] = id++;
    }
    vocab["ab"] = id++;
    vocab["abab"] = id++;
    vocab["<|endoftext|>"] = id++;
  }
  void write(const Folder& folder) const {
    folder.write("vocab.json", vocab.dump());
    std::string text;
    for (const std::string& merge : merges)
      text += merge + "\n";
    folder.write("merges.txt", text);
  }
  [[nodiscard]] json as_tokenizer_json() const {
    json root = {{"version", "1.0"}, {"normalizer", nullptr}, {"added_tokens", json::array()}};
    root["added_tokens"].push_back(
        {{"id", 258}, {"content", "<|endoftext|>"}, {"special", true}, {"lstrip", false}});
    root["pre_tokenizer"] = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
    root["model"] = {{"type", "BPE"}, {"dropout", nullptr}, {"vocab", vocab}};
    root["model"]["merges"] = json::array({"a b", json::array({"ab", "ab"})});
    return root;
  }
};

TEST(ByteTokenizer, IsTheBytesThemselves) {
  const auto ids = ids_of(*byte(), "A\n\xC3\xA9<|endoftext|>");

  EXPECT_EQ(Ids(ids.begin(), ids.begin() + 4), (Ids{65, 10, 0xC3, 0xA9}));
  EXPECT_EQ(ids.size(), 4U + 13U);
  EXPECT_EQ(byte()->size(), 256);
  EXPECT_EQ(byte()->end_of_text(), 0);
  EXPECT_EQ(byte()->name(), "byte");
}

TEST(Gpt2Tokenizer, HasTheShippedVocabulary) {
  EXPECT_EQ(gpt2()->size(), 50257);
  EXPECT_EQ(gpt2()->end_of_text(), 50256);
  EXPECT_EQ(gpt2()->bytes_of(0), "!");
  EXPECT_EQ(gpt2()->bytes_of(220), " ");
  EXPECT_EQ(gpt2()->bytes_of(50256), "<|endoftext|>");
  EXPECT_EQ(gpt2()->bytes_of(50257), "");
  EXPECT_EQ(gpt2()->bytes_of(-1), "");
  EXPECT_EQ(ids_of(*gpt2(), "Hello, world!"), (Ids{15496, 11, 995, 0}));
}

TEST(Tokenizers, DecodeToTheVeryBytesThatWereEncoded) {
  std::mt19937 random(11);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = i % 3 == 0 ? random_bytes(random)
                                        : random_text(random, 1 + static_cast<int>(random() % 60));
    for (const auto& tokenizer : {byte(), gpt2()}) {
      ASSERT_EQ(tokenizer->decode(ids_of(*tokenizer, text, i % 2 == 0)), text) << tokenizer->name();
    }
  }
}

TEST(Gpt2Tokenizer, RecognisesEndOfTextOnlyWhenAsked) {
  const auto special = ids_of(*gpt2(), "a <|endoftext|> b");
  const auto plain = ids_of(*gpt2(), "a <|endoftext|> b", false);

  EXPECT_EQ(special, (Ids{64, 220, 50256, 275}));
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 50256), 0);
  EXPECT_EQ(gpt2()->decode(plain), "a <|endoftext|> b");
}

TEST(Gpt2Tokenizer, GivesTheSameIdsWithAndWithoutItsMemoryOfWords) {
  std::mt19937 random(13);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i)
    texts.push_back(random_text(random, 40));
  const auto fresh = make_tokenizer({.type = "gpt2"});

  for (const auto& text : texts) {
    const auto before = ids_of(*gpt2(), text);
    ASSERT_EQ(ids_of(*gpt2(), text), before);
    ASSERT_EQ(ids_of(*fresh, text), before);
  }
}

TEST(Gpt2Tokenizer, IsNotSlowedDownByOneEndlessWord) {
  const std::string word(1'000'000, 'a');
  std::string varied;
  for (int i = 0; i < 500'000; ++i)
    varied += static_cast<char>('a' + i * i % 26);

  // Quadratic merging would take hours here; the test's time limit is the assertion.
  EXPECT_EQ(gpt2()->decode(ids_of(*gpt2(), word)), word);
  EXPECT_EQ(gpt2()->decode(ids_of(*gpt2(), varied)), varied);
}

TEST(Gpt2Tokenizer, EncodesFromManyThreadsAtOnce) {
  std::mt19937 random(17);
  const std::string text = random_text(random, 5000);
  const auto expected = ids_of(*gpt2(), text);
  std::vector<Ids> found(4);

  std::vector<std::thread> threads;
  for (Ids& ids : found)
    threads.emplace_back([&] { ids = ids_of(*gpt2(), text); });
  for (std::thread& thread : threads)
    thread.join();

  for (const Ids& ids : found)
    EXPECT_EQ(ids, expected);
}

TEST(Tokenizers, CanBeCutWhereTheySay) {
  std::mt19937 random(19);
  for (const auto& tokenizer : {byte(), gpt2()}) {
    for (int i = 0; i < 500; ++i) {
      const std::string text = random_text(random, 40);
      const std::size_t from = random() % (text.size() + 1), at = tokenizer->cut(text, from);
      Ids joined = ids_of(*tokenizer, std::string_view(text).substr(0, at));
      tokenizer->encode(std::string_view(text).substr(at), joined);
      ASSERT_GE(at, from);
      ASSERT_EQ(joined, ids_of(*tokenizer, text));
    }
  }
}

TEST(MakeTokenizer, RefusesUnknownTypesWithTheNearest) {
  const Error error = error_of([] { make_tokenizer({.type = "gpt-2"}); });

  EXPECT_EQ(error.kind(), Error::Kind::Config);
  EXPECT_TRUE(contains(error.fix(), "gpt2"));
}

TEST(MakeTokenizer, WantsBothFilesOrNone) {
  EXPECT_EQ(error_of([] { make_tokenizer({.type = "gpt2", .vocab = "v.json"}); }).kind(),
            Error::Kind::Config);
  EXPECT_EQ(error_of([] {
              make_tokenizer({.type = "byte", .vocab = "v.json", .merges = "m.txt"});
            }).kind(),
            Error::Kind::Config);
}

TEST(TokenizerFromFolder, ReadsVocabularyAndMerges) {
  const Folder folder;
  SmallVocabulary().write(folder);

  const auto tokenizer = tokenizer_from_folder(folder.path());

  EXPECT_EQ(tokenizer->size(), 259);
  EXPECT_EQ(tokenizer->end_of_text(), 258);
  EXPECT_EQ(ids_of(*tokenizer, "ababab"), (Ids{257, 256}));
}

TEST(TokenizerFromFolder, ReadsTokenizerJsonToTheSameTokenizer) {
  const Folder pair, single;
  SmallVocabulary().write(pair);
  single.write("tokenizer.json", SmallVocabulary().as_tokenizer_json().dump());

  const auto a = tokenizer_from_folder(pair.path()), b = tokenizer_from_folder(single.path());

  EXPECT_EQ(a->fingerprint(), b->fingerprint());
  EXPECT_NE(a->fingerprint(), gpt2()->fingerprint());
  EXPECT_EQ(ids_of(*b, "ababab<|endoftext|>"), (Ids{257, 256, 258}));
}

TEST(TokenizerFromFolder, HasOptionsThatNameItsFiles) {
  const Folder pair, single, bytes;
  SmallVocabulary().write(pair);
  single.write("tokenizer.json", SmallVocabulary().as_tokenizer_json().dump());
  bytes.write("tokenizer.json", byte_tokenizer_json());

  const TokenizerOptions of_pair = tokenizer_options_of(pair.path()),
                         of_single = tokenizer_options_of(single.path());

  EXPECT_EQ(of_pair.merges, (pair.path() / "merges.txt").string());
  EXPECT_EQ(of_single.vocab, (single.path() / "tokenizer.json").string());
  EXPECT_EQ(of_single.merges, "");
  for (const TokenizerOptions& options : {of_pair, of_single}) {
    EXPECT_EQ(options.type, "gpt2");
    EXPECT_EQ(ids_of(*make_tokenizer(options), "ababab"), (Ids{257, 256}));
  }
  EXPECT_EQ(tokenizer_options_of(bytes.path()).type, "byte");
}

// Earlier files write byte 0 as the letter that stands for it, and have no added token.
TEST(TokenizerFromFolder, KnowsTheBytesOfEarlierFilesToo) {
  const Folder folder, other;
  json root = json::parse(byte_tokenizer_json());
  json& vocabulary = root["model"]["vocab"];
  vocabulary.erase(std::string(1, '\0'));
  vocabulary["\u0100"] = 0;
  other.write("tokenizer.json", root.dump());  // the added token is not in the vocabulary
  root["added_tokens"] = json::array();
  folder.write("tokenizer.json", root.dump());

  EXPECT_EQ(tokenizer_options_of(folder.path()).type, "byte");
  EXPECT_NE(tokenizer_options_of(other.path()).type, "byte");
}

TEST(TokenizerFromFolder, ReadsPartsThatAreNotGpt2sAsAFile) {
  const std::vector<std::pair<std::string, json>> parts = {
      {"/normalizer", {{"type", "NFC"}}},
      {"/pre_tokenizer/type", "Metaspace"},
      {"/pre_tokenizer/add_prefix_space", true},
      {"/pre_tokenizer/use_regex", false},
      {"/model/type", "Unigram"},
      {"/model/byte_fallback", true},
      {"/model/end_of_word_suffix", "</w>"},
      {"/added_tokens/0/content", "<pad>"},
  };
  for (const auto& [pointer, value] : parts) {
    const Folder folder;
    json root = SmallVocabulary().as_tokenizer_json();
    root[json::json_pointer(pointer)] = value;
    folder.write("tokenizer.json", root.dump());

    EXPECT_EQ(tokenizer_options_of(folder.path()).type, "file") << pointer;
  }
}

// Vocabulary and merges do not mention added tokens.
TEST(TokenizerFromFolder, ReadsThemWithVocabularyAndMergesToo) {
  const Folder folder;
  SmallVocabulary().write(folder);
  json root = SmallVocabulary().as_tokenizer_json();
  folder.write("tokenizer.json", root.dump());
  EXPECT_EQ(tokenizer_options_of(folder.path()).merges, folder / "merges.txt");
  for (const auto& [pointer, value] :
       std::vector<std::pair<std::string, json>>{{"/normalizer", {{"type", "NFC"}}},
                                                 {"/pre_tokenizer/add_prefix_space", true},
                                                 {"/pre_tokenizer/use_regex", false},
                                                 {"/added_tokens/0/content", "<pad>"}}) {
    json changed = root;
    changed[json::json_pointer(pointer)] = value;
    folder.write("tokenizer.json", changed.dump());

    EXPECT_EQ(tokenizer_options_of(folder.path()).type, "file") << pointer;
  }
}

TEST(TokenizerFromFolder, ReadsPlainFilesThatEndAlone) {
  for (const char* name : {"tokenizer.json", "added_tokens.json", "vocab.json", "merges.txt"}) {
    const Folder folder;
    SmallVocabulary().write(folder);
    test::fs::remove(folder / name);
    test::fs::create_symlink("/dev/zero", folder / name);

    const Error error = error_of([&] { tokenizer_from_folder(folder.path()); });

    EXPECT_EQ(error.kind(), Error::Kind::Format) << name;
    EXPECT_TRUE(contains(error.what(), std::string(name) + " is not a plain file"));
  }
  const Folder folder;
  SmallVocabulary().write(folder);
  test::fs::resize_file(folder / "vocab.json", std::uintmax_t{1} << 40);  // a sparse file

  const Error error = error_of([&] { tokenizer_from_folder(folder.path()); });

  EXPECT_EQ(error.kind(), Error::Kind::Format);
  EXPECT_TRUE(contains(error.what(), "1.0 TiB, more than the 256.0 MiB"));
}

TEST(TokenizerFromFolder, RefusesFilesThatDoNotFitTogether) {
  const auto refused = [](const std::function<void(SmallVocabulary&)>& spoil,
                          const std::string& part) {
    const Folder folder;
    SmallVocabulary vocabulary;
    spoil(vocabulary);
    vocabulary.write(folder);
    const Error error = error_of([&] { tokenizer_from_folder(folder.path()); });
    EXPECT_EQ(error.kind(), Error::Kind::Format);
    EXPECT_TRUE(contains(error.what(), part));
  };

  refused([](auto& v) { v.merges.push_back("abab c"); }, "merges.txt:4");
  refused([](auto& v) { v.merges.push_back("onlyone"); }, "merges.txt:4");
  refused([](auto& v) { v.merges.push_back("a b c"); }, "merges.txt:4");
  refused([](auto& v) { v.vocab.erase("z"); }, "byte 0x7A");
  refused([](auto& v) { v.vocab["<|endoftext|>"] = 3; }, "two tokens have the id 3");
  refused([](auto& v) { v.vocab.erase("<|endoftext|>"); }, "<|endoftext|>");
  refused([](auto& v) { v.vocab["q"] = -1; }, "id -1");
  refused([](auto& v) { v.vocab["q"] = "seven"; }, "seven");
  refused([](auto& v) { v.vocab["q"] = 1e15; }, "id");
  refused([](auto& v) { v.vocab["\u4f60"] = 300; }, "byte characters");
  refused([](auto& v) { v.vocab = json::array(); }, "not an object");
}

// An added token may be missing in the vocabulary: then the added token's own entry gives its id.
TEST(TokenizerFromFolder, RefusesInvalidIdsOfAddedTokens) {
  for (const json& id : {json(-1), json(2147483647), json(1e300), json("x"), json(nullptr)}) {
    const Folder folder;
    SmallVocabulary vocabulary;
    vocabulary.vocab.erase("<|endoftext|>");
    json root = vocabulary.as_tokenizer_json();
    root["added_tokens"][0]["id"] = id;
    folder.write("tokenizer.json", root.dump());

    const Error error = error_of([&] { tokenizer_from_folder(folder.path()); });

    EXPECT_EQ(error.kind(), Error::Kind::Format);
    EXPECT_TRUE(contains(error.what(), "the id " + id.dump()));
  }
}

TEST(TokenizerFromFolder, SaysWhatAFolderWithoutTokenizerLacks) {
  const Folder folder;

  const Error error = error_of([&] { tokenizer_from_folder(folder.path()); });

  EXPECT_EQ(error.kind(), Error::Kind::Format);
  EXPECT_TRUE(contains(error.what(), "vocab.json"));
}

TEST(TokenizerFromFolder, RefusesAddedTokens) {
  const Folder folder;
  SmallVocabulary().write(folder);
  folder.write("added_tokens.json", R"({"<pad>": 259})");

  EXPECT_EQ(error_of([&] { tokenizer_from_folder(folder.path()); }).kind(),
            Error::Kind::Unsupported);
}

TEST(ShareDir, HoldsTheShippedVocabulary) {
  EXPECT_TRUE(std::filesystem::exists(share_dir() / "gpt2" / "merges.txt"));
}

}  // namespace
}  // namespace tessera::text
