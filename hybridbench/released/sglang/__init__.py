"""SGLang: its scheduler, pools, trees and sessions."""
