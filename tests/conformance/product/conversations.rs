//! Conversations that pmcd and dbpmda held, held again with the product.

use super::{Product, BCC, FORKS, PROFILE};
