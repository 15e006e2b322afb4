// SPDX-License-Identifier: LGPL-2.1-or-later
#![no_std]
//! Functions of several shapes: generic, closures, implementations of traits, names that are not ASCII, inlined ones.

use core::fmt::Write;
use core::ops::Add;

pub mod shapes {
    pub trait Area {
        fn area(&self) -> u64;
        fn doubled(&self) -> u64 {
            self.area() * 2
        }
    }
    pub struct Square(pub u64);
    pub struct Pair<T, const N: usize>(pub [T; N]);
    impl Area for Square {
        #[inline(never)]
        fn area(&self) -> u64 {
            if self.0 > 10 { self.0 * self.0 } else { 1 }
        }
    }
    impl Area for [u32] {
        #[inline(never)]
        fn area(&self) -> u64 {
            self.iter().map(|side| u64::from(*side)).max().unwrap_or(0)
        }
    }
    impl<T: Copy + Into<u64>, const N: usize> Area for Pair<T, N> {
        #[inline(never)]
        fn area(&self) -> u64 {
            let mut sum = 0;
            for item in self.0.iter() {
                sum += (*item).into();
            }
            sum
        }
    }
    impl<T: Copy, const N: usize> Pair<T, N> {
        #[inline]
        pub fn first(&self) -> Option<T> {
            self.0.first().copied()
        }
    }
}

use shapes::{Area, Pair, Square};

#[inline(never)]
fn apply<T: Add<Output = T> + Copy, F: Fn(T) -> T>(value: T, function: F) -> T {
    function(value) + function(value)
}

#[inline(always)]
fn inner(value: u64) -> u64 {
    if value % 3 == 0 { value / 3 } else { value + 1 }
}

#[inline(never)]
fn größe(value: u64) -> u64 {
    inner(value) ^ inner(value + 7)
}

#[inline(never)]
fn by_object(shape: &dyn Area) -> u64 {
    shape.doubled()
}

#[inline(never)]
fn by_pointer(function: extern "C" fn(u64) -> u64, value: u64) -> u64 {
    function(value)
}

extern "C" fn plain(value: u64) -> u64 {
    value.rotate_left(3)
}

struct Text([u8; 32], usize);

impl Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for byte in text.bytes() {
            *self.0.get_mut(self.1).ok_or(core::fmt::Error)? = byte;
            self.1 += 1;
        }
        Ok(())
    }
}

#[inline(never)]
fn sorted(values: &mut [(u32, u64)]) -> u64 {
    values.sort_unstable_by_key(|pair| pair.1);
    values.iter().filter(|pair| pair.0 > 2).map(|pair| pair.1).fold(0, |sum, value| sum.wrapping_mul(31) + value)
}

#[inline(never)]
fn chosen<'a>(words: &[&'a str], wanted: impl Fn(&str) -> bool) -> Option<&'a str> {
    words.iter().copied().find(|word| wanted(word))
}

#[no_mangle]
pub extern "C" fn rust_main(value: u64) -> u64 {
    let pair = Pair::<u8, 3>([1, value as u8, 3]);
    let more = Pair::<u32, 2>([value as u32, 2]);
    let add = |x: u64| if x > value { x - value } else { x + größe(value) };
    let mut sum = apply(value, add) + u64::from(apply(value as u32, |x| x ^ 3));
    sum += by_object(&Square(value)) + by_object(&pair) + more.area() + more.0[..].area();
    let mut text = Text([0; 32], 0);
    if write!(text, "{value}: {sum:#x}").is_err() {
        sum += 1;
    }
    sum += sorted(&mut [(1, value), (7, sum), (3, 9), (text.1 as u32, 4)]);
    sum += chosen(&["one", "two"], |word| word.len() as u64 > value).map_or(5, |word| word.len() as u64);
    sum += u64::from(pair.first().unwrap_or(0)) + by_pointer(plain, value);
    sum
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
