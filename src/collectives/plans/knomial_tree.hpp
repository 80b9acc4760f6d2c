#pragma once
#include <algorithm>
#include <vector>

namespace stretto::plans {

// A k-nomial tree as one rank sees it. Ranks are renumbered so that the root has place 0. The parent of a place is the place
// with its lowest nonzero digit, in base k, set to 0. So a subtree is a run of places that begins with the subtree's root,
// and a place has up to k - 1 children for each of its trailing zeros.
class KnomialTree {
 public:
  struct Child {
    int rank;
    int first, places;  // its subtree
  };

  KnomialTree(int rank, int root, int size, int radix)
      : root_(root), size_(size), radix_(radix), place_((rank - root + size) % size) {}

  int place() const { return place_; }
  bool is_root() const { return place_ == 0; }
  bool is_leaf() const { return places() == 1; }
  int rank_at(int place) const { return (place + root_) % size_; }
  int parent_place() const { return place_ - place_ % (span(place_) * radix_); }
  int parent() const { return rank_at(parent_place()); }
  // The number of places in a subtree.
  int places(int place) const { return std::min(span(place), size_ - place); }
  int places() const { return places(place_); }

  // One list for each level on which this rank has children, those with the largest subtrees first.
  std::vector<std::vector<Child>> levels() const {
    std::vector<std::vector<Child>> levels;
    if (is_leaf()) return levels;
    levels.reserve(8);
    for (int unit = span(place_) / radix_; unit > 0; unit /= radix_) {
      std::vector<Child> children;
      children.reserve(radix_ - 1);
      for (int digit = 1; digit < radix_ && place_ + digit * unit < size_; ++digit) {
        const int place = place_ + digit * unit;
        children.push_back({rank_at(place), place, places(place)});
      }
      if (!children.empty()) levels.push_back(std::move(children));
    }
    return levels;
  }

  // The length of the longest path, which is the root's: its levels, and its children on all of them.
  static int depth(int size, int radix) {
    int levels = 0;
    for (int reached = 1; reached < size; reached *= radix) ++levels;
    return levels;
  }
  static int children_of_root(int size, int radix) {
    int children = 0;
    for (int unit = 1; unit < size; unit *= radix) children += std::min(radix, (size + unit - 1) / unit) - 1;
    return children;
  }

 private:
  // The places of a full subtree.
  int span(int place) const {
    int span = 1;
    while (place == 0 ? span < size_ : place % (span * radix_) == 0) span *= radix_;
    return span;
  }

  int root_;
  int size_;
  int radix_;
  int place_;
};

}  // namespace stretto::plans
