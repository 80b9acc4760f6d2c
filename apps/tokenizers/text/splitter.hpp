#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/tokenizers/text/pattern.hpp"

namespace apps {

using TakePiece = std::function<void(std::string_view)>;

// Cuts a text into the pieces that are encoded one by one: words with the space before them, numbers, white space. Each step
// cuts the pieces of the one before it, and sees nothing beyond a piece's ends. Names are those of tokenizers'
// pre-tokenizers.
//
// Steps see valid UTF-8 alone: a byte that belongs to no valid character is a piece of its own.
class Splitter {
 public:
  enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  enum class Prepend { always, first, never };

  // At what the pattern finds, or with `inverts` at what lies between.
  void split_at(const Pattern& pattern, Behavior behavior = Behavior::isolated, bool inverts = false);
  // ByteLevel's add_prefix_space: a space before each piece that begins with none.
  void prefix_space();
  // Metaspace: the replacement stands for spaces, and before a text; with `splits` pieces begin with it.
  void metaspace(const std::string& replacement, Prepend prepend, bool splits);
  // Before each marker that follows something else: words that no token reaches beyond, and that may be remembered
  // therefore.
  void cut_words(const std::string& marker);

  // `begins`: whether the text is the beginning of what a user gave.
  void split(std::string_view text, bool begins, const TakePiece& take) const;

  class Step {
   public:
    virtual ~Step() = default;
    virtual void run(std::string_view piece, bool begins, const TakePiece& take) const = 0;
  };

 private:
  void run(std::size_t step, std::string_view piece, bool begins, const TakePiece& take) const;
  std::vector<std::shared_ptr<const Step>> steps_;
};

}  // namespace apps
