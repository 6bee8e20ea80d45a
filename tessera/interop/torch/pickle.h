// SPDX-License-Identifier: Apache-2.0
// Reads pickles as data: the part of Python's pickle format that torch.save needs for tensors,
// containers, numbers and strings. Nothing is imported or called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::interop {

/// The content of one pickle: a graph of numbered nodes, in which shared values stay shared and
/// cycles are harmless. Objects other than tensors become descriptions if their classes are known
/// (pickle_globals.h). Throws Error{Format} with `source` and the byte position for everything
/// else: an unlisted global, a call of a global that is not a function, an opcode that creates
/// objects of classes, a length beyond the bytes, a pickle of more than kMaxBytes or kMaxNodes.
/// Throws Error{Unsupported} for quantized, sparse and other tensors without plain elements. Cost:
/// memory proportional to the bytes; no recursion.
class Pickle {
 public:
  using Id = std::uint32_t;
  enum class Kind : std::uint8_t {
    None,
    Bool,
    Int,
    BigInt,  ///< `text` has the little-endian bytes
    Float,
    String,
    Bytes,
    List,
    Tuple,
    Dict,        ///< `items`: key, value, key, value, ...
    Global,      ///< `text`: "torch.FloatStorage"
    Persistent,  ///< `items`: the id
    Call,        ///< `items`: the global, and the tuple of its arguments
    Object,      ///< `items`: the class or function, its arguments, and what state was set
  };
  struct Node {
    Kind kind = Kind::None;
    std::int64_t integer = 0;  ///< for Bool and Int
    double number = 0;
    std::string text;
    std::vector<Id> items;
  };
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
  static constexpr std::size_t kMaxNodes = std::size_t{4} << 20;

  /// Reads one pickle from the front of `bytes`; `begin` is their position in the file.
  Pickle(std::span<const std::byte> bytes, std::string source, std::uint64_t begin = 0);
  [[nodiscard]] const Node& root() const { return nodes_[root_]; }
  [[nodiscard]] const Node& node(Id id) const { return nodes_[id]; }
  /// Number of bytes including the end of the pickle.
  [[nodiscard]] std::size_t size() const { return at_; }
  /// "a list", "the global torch.FloatStorage": for messages.
  [[nodiscard]] static std::string shown(const Node& node);

 private:
  [[noreturn]] void refuse(const std::string& what) const;
  std::string_view take(std::uint64_t count);
  template <class T>
  T number();
  std::string line();
  void run();
  void step(unsigned opcode);
  bool object(unsigned opcode);
  bool constant(unsigned opcode);
  bool text(unsigned opcode);
  bool container(unsigned opcode);
  bool memory(unsigned opcode);
  Id make(Node node);
  void push(Node node);
  Id pop();
  Id top() const;
  std::vector<Id> pop_mark();
  void push_text(Kind kind, std::uint64_t length);
  void push_long(std::uint64_t length);
  void push_tuple(std::size_t count);
  void append(const std::vector<Id>& items);
  void set_items(const std::vector<Id>& items);
  void global(const std::string& module, const std::string& name);
  void reduce();
  void rebuild_subclass(const Node& arguments);
  void new_object();
  void build();
  void put(std::uint32_t index);
  void get(std::uint32_t index);
  [[nodiscard]] Node ordered_dict(const Node& arguments);

  std::string source_;
  std::string_view bytes_;
  std::uint64_t begin_ = 0;
  std::size_t at_ = 0, opcode_at_ = 0;
  std::vector<Node> nodes_;
  std::vector<Id> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, Id> memo_;
  std::size_t copied_ = 0;
  Id root_ = 0;
};

}  // namespace tessera::interop
